/* The addresses that control connections use. Never a wildcard; a public address only if the user
 * names it. */
#include "base/file.h"
#include "base/settings.h"
#include "base/text.h"
#include "comm/watch/watch_impl.h"

#include <arpa/inet.h>
#include <errno.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netdb.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

enum { BACKLOG = 1024 };
static const char SETTING[] = "SHEAF_CONTROL_ADDRESS";

static const struct network {
    uint32_t address;
    int bits;
} not_public[] = {
    {0x0a000000, 8},                                      /* 10.0.0.0 */
    {0xac100000, 12},                                     /* 172.16.0.0 */
    {0xc0a80000, 16},                                     /* 192.168.0.0 */
    {0x7f000000, 8},                                      /* loopback */
    {0xa9fe0000, 16},                                     /* link-local */
    {0x64400000, 10},                                     /* shared between carriers */
    {0xc0000200, 24},                                     /* documentation, three of them */
    {0xc6336400, 24}, {0xcb007100, 24}, {0xc6120000, 15}, /* benchmarks */
};

static bool inside(uint32_t address, struct network n) {
    return (address ^ n.address) >> (32 - n.bits) == 0;
}

static bool is_loopback(uint32_t address) {
    return inside(address, (struct network){0x7f000000, 8});
}

bool sheaf__address_is_public(uint32_t address) {
    for (size_t i = 0; i < sizeof not_public / sizeof *not_public; i++)
        if (inside(address, not_public[i])) return false;
    return true;
}

void sheaf__address_text(uint32_t a, char text[SHEAF__ADDRESS_TEXT]) {
    snprintf(text, SHEAF__ADDRESS_TEXT, "%u.%u.%u.%u", a >> 24, a >> 16 & 255, a >> 8 & 255,
             a & 255);
}

static void add(struct sheaf__address_list *list, uint32_t address) {
    for (int i = 0; i < list->n; i++)
        if (list->address[i] == address) return;
    if (list->n < SHEAF__MAX_ADDRESSES) list->address[list->n++] = address;
}

static bool parse_network(const char *text, struct network *out) {
    char copy[32], *slash, *end = NULL;
    struct in_addr in;
    long bits = 32;
    if (snprintf(copy, sizeof copy, "%s", text) >= (int)sizeof copy) return false;
    if ((slash = strchr(copy, '/'))) {
        *slash = 0;
        bits = strtol(slash + 1, &end, 10);
        if (*end || bits < 1 || bits > 32) return false;
    }
    if (inet_pton(AF_INET, copy, &in) != 1) return false;
    *out = (struct network){ntohl(in.s_addr), (int)bits};
    return true;
}

/* Addresses by which the launcher's daemon on this host listens: "1.0;tcp://10.0.0.1,10.1.0.1:33".
 */
static void from_open_mpi(struct sheaf__address_list *list) {
    const char *uri = getenv("OMPI_MCA_orte_local_daemon_uri"), *p;
    char text[SHEAF__ADDRESS_TEXT];
    if (!uri || !(p = strstr(uri, "tcp://"))) return;
    for (p += 6; *p && *p != ':' && *p != ';';) {
        const size_t n = strcspn(p, ",:;");
        struct in_addr in;
        snprintf(text, sizeof text, "%.*s", (int)n, p);
        if (inet_pton(AF_INET, text, &in) == 1) add(list, ntohl(in.s_addr));
        p += n + (p[n] == ',');
    }
}

/* What the host's name means; Slurm may call it by another. Debian's installer calls the host itself by 127.0.1.1, by
 * which no other host reaches it. */
static void from_name(const char *name, struct sheaf__address_list *list) {
    const struct addrinfo hints = {.ai_family = AF_INET, .ai_socktype = SOCK_STREAM};
    struct addrinfo *found = NULL;
    if (!name || !*name || getaddrinfo(name, NULL, &hints, &found)) return;
    for (const struct addrinfo *i = found; i; i = i->ai_next) {
        struct sockaddr_in in;
        memcpy(&in, i->ai_addr, sizeof in);
        if (!is_loopback(ntohl(in.sin_addr.s_addr))) add(list, ntohl(in.sin_addr.s_addr));
    }
    freeaddrinfo(found);
}

static bool wanted(uint32_t address, const struct network *named,
                   const struct sheaf__address_list *launcher) {
    if (named) return inside(address, *named);
    if (is_loopback(address) || sheaf__address_is_public(address)) return false;
    for (int i = 0; i < launcher->n; i++)
        if (launcher->address[i] == address) return true;
    return launcher->n == 0;
}

enum sheaf_status sheaf__address_own(bool one_host, struct sheaf__address_list *list) {
    const char *setting = sheaf__setting_text(SHEAF__SET_CONTROL_ADDRESS);
    struct sheaf__address_list launcher = {0};
    struct network named = {0};
    struct ifaddrs *all = NULL;
    char host[256] = "", text[256] = "none";
    struct sheaf__text seen = {text, sizeof text, 0};
    *list = (struct sheaf__address_list){0};
    if (setting && !parse_network(setting, &named))
        return sheaf_set_error(SHEAF_STATUS_INVALID,
                               "setting %s is '%s'; it takes an IPv4 address or a "
                               "network such as 10.0.0.0/24",
                               SETTING, setting);
    if (one_host) {
        add(list, 0x7f000001);
        return SHEAF_STATUS_SUCCESS;
    }
    from_open_mpi(&launcher);
    if (!launcher.n) from_name(getenv("SLURMD_NODENAME"), &launcher);
    gethostname(host, sizeof host - 1);
    if (!launcher.n) from_name(host, &launcher);
    if (getifaddrs(&all))
        return sheaf_set_error(SHEAF_STATUS_IO, "start: cannot list network interfaces: %s",
                               sheaf__errno_text(errno));
    for (const struct ifaddrs *i = all; i; i = i->ifa_next) {
        struct sockaddr_in in;
        char name[SHEAF__ADDRESS_TEXT];
        if (!i->ifa_addr || i->ifa_addr->sa_family != AF_INET || !(i->ifa_flags & IFF_UP)) continue;
        memcpy(&in, i->ifa_addr, sizeof in);
        const uint32_t address = ntohl(in.sin_addr.s_addr);
        if (wanted(address, setting ? &named : NULL, &launcher)) add(list, address);
        sheaf__address_text(address, name);
        sheaf__put(&seen, "%s%s %s", seen.n ? ", " : "", i->ifa_name, name);
    }
    freeifaddrs(all);
    if (list->n) return SHEAF_STATUS_SUCCESS;
    return sheaf_set_error(SHEAF_STATUS_INVALID,
                           "start: host %s has no %s for control connections (it has %s); name "
                           "one with %s=ADDRESS or a network such as 10.0.0.0/24",
                           host, setting ? "address in that network" : "private address", text,
                           SETTING);
}

static struct sockaddr_in socket_address(uint32_t address, uint16_t port) {
    return (struct sockaddr_in){
        .sin_family = AF_INET, .sin_port = htons(port), .sin_addr.s_addr = htonl(address)};
}

int sheaf__address_listen(uint32_t address, uint16_t *port) {
    struct sockaddr_in in = socket_address(address, 0);
    socklen_t size = sizeof in;
    const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd < 0) return -1;
    if (bind(fd, (struct sockaddr *)&in, sizeof in) || listen(fd, BACKLOG) ||
        getsockname(fd, (struct sockaddr *)&in, &size)) {
        const int error = errno;
        close(fd);
        errno = error;
        return -1;
    }
    *port = ntohs(in.sin_port);
    return fd;
}

int sheaf__address_connect(uint32_t address, uint16_t port) {
    const struct sockaddr_in in = socket_address(address, port);
    const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd < 0 || !connect(fd, (const struct sockaddr *)&in, sizeof in) || errno == EINPROGRESS)
        return fd;
    const int error = errno;
    close(fd);
    errno = error;
    return -1;
}
