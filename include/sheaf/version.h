/* Version of the library. */
#ifndef SHEAF_VERSION_H
#define SHEAF_VERSION_H

#ifdef __cplusplus
extern "C" {
#endif

/* "0.1.0" of the library that is loaded. */
const char *sheaf_version(void);
/* "avx2-capable build, commit abc1234" style text of how the library was built. */
const char *sheaf_build_info(void);

#ifdef __cplusplus
}
#endif
#endif
