/* AddressSanitizer's checks of vectors, for modules of kernels. In a large function, whose checks are calls
 * (SHEAF_KERNEL_CHECKS), gcc calls __asan_loadN and __asan_storeN for 32 and for 64 bytes. The library's functions,
 * which take any number of bytes, had 20 to 29 % of the time of suites that compute. The functions here look at all
 * shadow bytes of a vector at once, and leave what is not clean to the library. A shadow byte is 0 if all of its 8
 * bytes may be read and written (https://github.com/google/sanitizers/wiki/AddressSanitizerAlgorithm). */
#include <sanitizer/asan_interface.h>
#include <stdbool.h>
#include <stdint.h>
#include <string.h>

void __asan_loadN(uintptr_t p, size_t size);
void __asan_storeN(uintptr_t p, size_t size);
/* libasan's */
void __asan_get_shadow_mapping(size_t *scale, size_t *offset);
void __asan_report_load_n(uintptr_t p, size_t size);
void __asan_report_store_n(uintptr_t p, size_t size);

static size_t shadow_scale, shadow_offset;

__attribute__((constructor)) static void find_shadow(void) {
    __asan_get_shadow_mapping(&shadow_scale, &shadow_offset);
}

static inline bool is_clean(uintptr_t p, size_t size) {
    const char *shadow = (const char *)((p >> 3) + shadow_offset);
    const char *last = (const char *)(((p + size - 1) >> 3) + shadow_offset);
    uint64_t eight = 1;
    uint32_t four = 1;
    if (shadow_scale != 3) return false;
    if (size == 64) {
        memcpy(&eight, shadow, sizeof eight);
        return !eight && !*last;
    }
    if (size == 32) {
        memcpy(&four, shadow, sizeof four);
        return !four && !*last;
    }
    return false;
}

void __asan_loadN(uintptr_t p, size_t size) {
    if (!is_clean(p, size) && __asan_region_is_poisoned((void *)p, size))
        __asan_report_load_n(p, size);
}
void __asan_storeN(uintptr_t p, size_t size) {
    if (!is_clean(p, size) && __asan_region_is_poisoned((void *)p, size))
        __asan_report_store_n(p, size);
}
