/* IPv4 addresses of this host that control connections may use, and sockets on them. Addresses are
 * in host byte order. */
#ifndef SHEAF_COMM_ADDRESS_H
#define SHEAF_COMM_ADDRESS_H

#include "core/internal.h"

enum { SHEAF__MAX_ADDRESSES = 4, SHEAF__ADDRESS_TEXT = 16 };

struct sheaf__address_list {
    uint32_t address[SHEAF__MAX_ADDRESSES];
    int n;
};

/* one_host: the loopback address. Otherwise those of SHEAF_CONTROL_ADDRESS (an address or a network
 * a.b.c.d/n), or those by which the launcher reaches this host, if they are not public ones. */
enum sheaf_status sheaf__address_own(bool one_host, struct sheaf__address_list *list);
void sheaf__address_text(uint32_t address, char text[SHEAF__ADDRESS_TEXT]);
/* True for addresses that the internet routes. */
bool sheaf__address_is_public(uint32_t address);
/* Both return -1 and errno, or a socket that does not block. */
int sheaf__address_listen(uint32_t address, uint16_t *port);
int sheaf__address_connect(uint32_t address, uint16_t port); /* waits at most 3 s */

#endif
