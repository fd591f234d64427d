/* The module: its registry entry and its devices.
 *
 * Devices are listed by the first call that asks, and stay. A machine without a driver, without a
 * GPU, or with GPUs that this build has no code for loads the module like any other and gets no
 * device; "sheaf_backend_cuda_no_device" says why. Listing makes no context on any GPU.
 *
 * The ranks of a host share its GPUs out: each takes a range of them, or, if there are fewer GPUs
 * than ranks, one. A GPU may be listed as several devices (SHEAF_CUDA_DEVICES). */
#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

#include "backend/devcomm.h"
#include "cuda/device.h"
#include "sheaf/settings.h"

/* Architectures in the build, ascending: machine code for each of SHEAF_CUDA_ARCHS, and code that the driver
 * compiles for whatever is newer than SHEAF_CUDA_PTX (0: none). */
static const int archs[] = {SHEAF_CUDA_ARCHS};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static bool listed;
static size_t n_devices;
static struct sheaf__cuda_device devices[SHEAF__CUDA_MAX_DEVICES];
static char why_none[512];
extern struct sheaf_backend_reg sheaf__cuda_reg;

enum sheaf_status sheaf__cuda_error(const char *device, cudaError_t error, const char *fmt, ...) {
    char what[192];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(what, sizeof what, fmt, ap);
    va_end(ap);
    cudaGetLastError(); /* or the next launch would find it and take it for its own */
    const bool fault = error == cudaErrorIllegalAddress || error == cudaErrorLaunchFailure ||
                       error == cudaErrorAssert || error == cudaErrorMisalignedAddress ||
                       error == cudaErrorIllegalInstruction || error == cudaErrorECCUncorrectable ||
                       error == cudaErrorLaunchTimeout || error == cudaErrorHardwareStackError ||
                       error == cudaErrorInvalidPc || error == cudaErrorInvalidAddressSpace ||
                       error == cudaErrorMpsClientTerminated;
    return sheaf_set_error(
        error == cudaErrorMemoryAllocation ? SHEAF_STATUS_ALLOC_FAILED : SHEAF_STATUS_FAILED,
        "%s: %s: %s (%s)%s", device, what, cudaGetErrorString(error), cudaGetErrorName(error),
        fault ? "; the device is lost to this process, start it anew" : "");
}

/* ---- device ---- */

cudaError_t sheaf__cuda_use(struct sheaf__cuda_device *device) {
    const cudaError_t e = cudaSetDevice(device->ordinal);
    if (!e) __atomic_store_n(&device->used, true, __ATOMIC_RELAXED);
    return e;
}

static void reach(int from, int to) {
    int can = 0;
    if (cudaSetDevice(from) || cudaDeviceCanAccessPeer(&can, from, to) || !can ||
        cudaDeviceEnablePeerAccess(to, 0))
        cudaGetLastError(); /* it was enabled before, or copies go through the host */
}

void sheaf__cuda_reach_peers(struct sheaf__cuda_device *device) {
    pthread_mutex_lock(&lock);
    for (size_t i = 0; i < n_devices; i++) {
        const struct sheaf__cuda_device *other = &devices[i];
        if (other->ordinal == device->ordinal || !__atomic_load_n(&other->used, __ATOMIC_RELAXED))
            continue;
        reach(device->ordinal, other->ordinal);
        reach(other->ordinal, device->ordinal);
    }
    cudaSetDevice(device->ordinal);
    pthread_mutex_unlock(&lock);
}

static struct sheaf__cuda_device *device_of(sheaf_backend_dev_t dev) {
    return (struct sheaf__cuda_device *)dev->context;
}

static const char *dev_name(sheaf_backend_dev_t dev) { return device_of(dev)->name; }
static const char *dev_description(sheaf_backend_dev_t dev) { return device_of(dev)->description; }

/* Asking the driver what is free makes a context, which takes some 0.5 GiB of the GPU and time. So
 * all memory counts as free until this process uses the device. */
static void dev_memory(sheaf_backend_dev_t dev, size_t *available, size_t *total) {
    const struct sheaf__cuda_device *d = device_of(dev);
    *available = *total = d->total_memory;
    if (!__atomic_load_n(&d->used, __ATOMIC_RELAXED)) return;
    if (cudaSetDevice(d->ordinal) || cudaMemGetInfo(available, total)) {
        cudaGetLastError();
        *available = *total = 0;
    }
}

static enum sheaf_backend_dev_type dev_type(sheaf_backend_dev_t dev) {
    (void)dev;
    return SHEAF_BACKEND_DEVICE_TYPE_GPU;
}

static void dev_props(sheaf_backend_dev_t dev, struct sheaf_backend_dev_props *props) {
    props->name = dev_name(dev);
    props->description = dev_description(dev);
    dev_memory(dev, &props->memory_free, &props->memory_total);
    props->type = SHEAF_BACKEND_DEVICE_TYPE_GPU;
    props->caps.async = true;
    props->caps.host_buffer = true;
    props->caps.buffer_from_host_ptr = false;
    props->caps.events = true;
}

static enum sheaf_status dev_init(sheaf_backend_dev_t dev, const char *params,
                                  sheaf_backend_t *out) {
    return sheaf__cuda_backend_new(device_of(dev), params, out);
}
static sheaf_backend_buffer_type_t dev_buft(sheaf_backend_dev_t dev) {
    return &device_of(dev)->buft;
}
static sheaf_backend_buffer_type_t dev_host_buft(sheaf_backend_dev_t dev) {
    return &device_of(dev)->host_buft;
}
static bool dev_supports_op(sheaf_backend_dev_t dev, const struct sheaf_tensor *op) {
    (void)dev;
    return sheaf__cuda_supports_op(op);
}
static bool dev_supports_buft(sheaf_backend_dev_t dev, sheaf_backend_buffer_type_t buft) {
    return sheaf__cuda_device_of_buft(buft) == device_of(dev);
}
/* Copying weights here pays for products with many columns. */
static bool dev_offload_op(sheaf_backend_dev_t dev, const struct sheaf_tensor *op) {
    (void)dev;
    if (op->op == SHEAF_OP_MUL_MAT) return op->ne[1] >= 32;
    return op->op == SHEAF_OP_MUL_MAT_ID && op->ne[2] >= 32;
}

static struct sheaf_backend_device_i make_device_i() {
    struct sheaf_backend_device_i i;
    memset(&i, 0, sizeof i);
    i.get_name = dev_name;
    i.get_description = dev_description;
    i.get_memory = dev_memory;
    i.get_type = dev_type;
    i.get_props = dev_props;
    i.init_backend = dev_init;
    i.get_buffer_type = dev_buft;
    i.get_host_buffer_type = dev_host_buft;
    i.supports_op = dev_supports_op;
    i.supports_buft = dev_supports_buft;
    i.offload_op = dev_offload_op;
    i.event_new = sheaf__cuda_event_new;
    i.event_free = sheaf__cuda_event_free;
    i.event_synchronize = sheaf__cuda_event_synchronize;
    return i;
}
static const struct sheaf_backend_device_i device_i = make_device_i();

/* ---- listing ---- */

/* The architecture of the code in this build that a device of this capability runs: machine code
 * of its generation first, then what the driver compiles. 0: none. */
static int code_for(int capability) {
    int best = 0;
    for (size_t i = 0; i < sizeof archs / sizeof *archs; i++) {
        if (archs[i] / 10 == capability / 10 && archs[i] <= capability) best = archs[i];
    }
    return best ? best : SHEAF_CUDA_PTX <= capability ? SHEAF_CUDA_PTX : 0;
}

/* A number that the launcher gave this process; -1 if none did. */
static int number_from(const char *const *names) {
    for (; *names; names++) {
        const char *text = getenv(*names);
        char *end;
        const long n = text && *text ? strtol(text, &end, 10) : -1;
        if (text && *text && !*end && n >= 0 && n < 1 << 20) return (int)n;
    }
    return -1;
}

/* Slurm gives the tasks of all nodes of a step in one text: "8(x2),4" is 8, 8 and 4. -1: not given. */
static int slurm_tasks_here(void) {
    static const char *const node_names[] = {"SLURM_NODEID", NULL};
    const char *text = getenv("SLURM_STEP_TASKS_PER_NODE");
    int node = number_from(node_names), used = 0;
    for (unsigned n, times; text && node >= 0 && sscanf(text, "%u%n", &n, &used) == 1;) {
        text += used;
        used = 0;
        if (sscanf(text, "(x%u)%n", &times, &used) < 1 || !used) times = 1, used = 0;
        if ((unsigned)node < times) return n < 1 << 20 ? (int)n : -1;
        node -= (int)times;
        text += used;
        if (*text++ != ',') break;
    }
    return -1;
}

/* GPUs [*first, *last) of n are this rank's. */
static void share(int n, int *first, int *last) {
    static const char *const ranks[] = {"OMPI_COMM_WORLD_LOCAL_RANK",
                                        "MPI_LOCALRANKID",
                                        "PALS_LOCAL_RANKID",
                                        "PMI_LOCAL_RANK",
                                        "SLURM_LOCALID",
                                        NULL};
    static const char *const sizes[] = {"OMPI_COMM_WORLD_LOCAL_SIZE", "MPI_LOCALNRANKS",
                                        "PALS_LOCAL_SIZE", "PMI_LOCAL_SIZE", NULL};
    static const char *const per_node[] = {"SLURM_NTASKS_PER_NODE", NULL};
    const int rank = number_from(ranks);
    int size = number_from(sizes);
    if (size < 0) size = slurm_tasks_here();
    if (size < 0) size = number_from(per_node);
    *first = 0;
    *last = n;
    if (n < 1 || rank < 0 || size < 2 || rank >= size) return;
    *first = n >= size ? n * rank / size : rank % n;
    *last = n >= size ? n * (rank + 1) / size : *first + 1;
}

/* number: of its name; more than one device may be the same GPU (SHEAF_CUDA_DEVICES). */
static void add_device(int number, int ordinal, const struct cudaDeviceProp *p) {
    struct sheaf__cuda_device *d = &devices[n_devices++];
    d->base.iface = &device_i;
    d->base.reg = &sheaf__cuda_reg;
    d->base.context = d;
    d->ordinal = ordinal;
    d->n_sm = p->multiProcessorCount;
    d->most_shared = p->sharedMemPerBlockOptin;
    d->capability = p->major * 10 + p->minor;
    d->code = code_for(d->capability);
    d->total_memory = p->totalGlobalMem;
    snprintf(d->name, sizeof d->name, "CUDA%d", number);
    snprintf(d->buft_name, sizeof d->buft_name, "CUDA%d", number);
    snprintf(d->description, sizeof d->description,
             "%s, %d multiprocessors, capability %d.%d, %zu MiB", p->name, p->multiProcessorCount,
             p->major, p->minor, p->totalGlobalMem >> 20);
    if (d->code / 10 < p->major) {
        const size_t len = strlen(d->description);
        snprintf(d->description + len, sizeof d->description - len, ", runs code for %d.%d",
                 d->code / 10, d->code % 10);
    }
    d->buft.iface = &sheaf__cuda_buft_i;
    d->buft.device = &d->base;
    d->buft.context = d;
    d->host_buft.iface = &sheaf__cuda_host_buft_i;
    d->host_buft.device = &d->base;
    d->host_buft.context = d;
}

/* SHEAF_CUDA_DEVICES=n lists n devices, GPUs more than once if need be: groups on one GPU, for
 * tests. *n stays if it is not set. */
static bool devices_wanted(int *n) {
    const char *text = sheaf_setting_value("SHEAF_CUDA_DEVICES");
    char *end;
    if (*n > SHEAF__CUDA_MAX_DEVICES) *n = SHEAF__CUDA_MAX_DEVICES;
    if (!text || !*text) return true;
    const long wanted = strtol(text, &end, 10);
    if (*end || wanted < 1 || wanted > SHEAF__CUDA_MAX_DEVICES) {
        snprintf(why_none, sizeof why_none,
                 "no CUDA device: SHEAF_CUDA_DEVICES is '%.40s'; it takes 1 to %d", text,
                 SHEAF__CUDA_MAX_DEVICES);
        return false;
    }
    *n = (int)wanted;
    return true;
}

/* Called with the lock held. */
static void list_devices(void) {
    int n = 0, first, last; /* without a driver the count is left as it is */
    if (listed) return;
    listed = true;
    const cudaError_t e = cudaGetDeviceCount(&n);
    if (e || n < 1) {
        cudaGetLastError();
        snprintf(why_none, sizeof why_none, "no CUDA device: %s%s",
                 e ? cudaGetErrorString(e) : "the driver lists none",
                 e == cudaErrorInsufficientDriver ? " (no driver is installed, or one too old)"
                                                  : "");
        return;
    }
    share(n, &first, &last);
    int wanted = last - first;
    if (!devices_wanted(&wanted)) return;
    for (int number = first; number < first + wanted; number++) {
        const int i = first + (number - first) % (last - first);
        struct cudaDeviceProp p;
        const cudaError_t failed = cudaGetDeviceProperties(&p, i);
        if (failed) {
            cudaGetLastError();
            snprintf(why_none, sizeof why_none, "no CUDA device: GPU %d: %s", i,
                     cudaGetErrorString(failed));
        } else if (!code_for(p.major * 10 + p.minor)) {
            snprintf(why_none, sizeof why_none,
                     "no CUDA device: this build has no code for GPU %d (%s, capability %d.%d); "
                     "build with -DSHEAF_CUDA_ARCHITECTURES=%d%d",
                     i, p.name, p.major, p.minor, p.major, p.minor);
        } else {
            add_device(number, i, &p);
        }
    }
}

static const char *reg_name(sheaf_backend_reg_t reg) {
    (void)reg;
    return "CUDA";
}
static size_t reg_device_count(sheaf_backend_reg_t reg) {
    (void)reg;
    pthread_mutex_lock(&lock);
    list_devices();
    pthread_mutex_unlock(&lock);
    return n_devices;
}
static sheaf_backend_dev_t reg_device(sheaf_backend_reg_t reg, size_t index) {
    return index < reg_device_count(reg) ? &devices[index].base : NULL;
}

/* ---- functions by name ---- */

/* Why there is no device; "" if there is one. */
static const char *no_device(void) { return reg_device_count(&sheaf__cuda_reg) ? "" : why_none; }
/* The number that CUDA knows the device by; -1 if it is not one of ours. */
static int ordinal_of(sheaf_backend_dev_t dev) {
    return dev && dev->iface == &device_i ? device_of(dev)->ordinal : -1;
}

static void *reg_proc(sheaf_backend_reg_t reg, const char *name) {
    (void)reg;
    if (!strcmp(name, "sheaf_backend_cuda_no_device")) return (void *)no_device;
    if (!strcmp(name, "sheaf_backend_cuda_ordinal")) return (void *)ordinal_of;
    /* void *(*)(sheaf_backend_t): its cudaStream_t, for those that order work of their own after
     * the backend's; NULL if it is not one of ours */
    if (!strcmp(name, "sheaf_backend_cuda_stream")) return (void *)sheaf__cuda_backend_stream;
    if (!strcmp(name, SHEAF__CAPTURE_PROC)) return (void *)sheaf__cuda_backend_capture;
    if (!strcmp(name, SHEAF__SUM_PROC)) return (void *)sheaf__cuda_backend_sum;
    if (!strcmp(name, SHEAF__DEVCOMM_PROC)) return (void *)&sheaf__cuda_shared_gpu;
    return NULL;
}

static struct sheaf_backend_reg_i make_reg_i() {
    struct sheaf_backend_reg_i i;
    memset(&i, 0, sizeof i);
    i.get_name = reg_name;
    i.get_device_count = reg_device_count;
    i.get_device = reg_device;
    i.get_proc_address = reg_proc;
    return i;
}
static const struct sheaf_backend_reg_i reg_i = make_reg_i();
struct sheaf_backend_reg sheaf__cuda_reg = {SHEAF_BACKEND_API_VERSION, &reg_i, NULL};

/* CUDA loads a kernel at its first launch, by default, and may wait for all work of the device then.
 * If that work is a collective that waits for another member of this process, neither goes on. So all
 * kernels are loaded with the context; the runtime has not been called yet. */
sheaf_backend_reg_t sheaf_backend_init(void) {
    setenv("CUDA_MODULE_LOADING", "EAGER", 0);
    return &sheaf__cuda_reg;
}
/* Also without a device: a list that is empty is no failure. */
int sheaf_backend_score(void) { return 1; }
