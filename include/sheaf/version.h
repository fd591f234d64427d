/* Version of the library. */
#ifndef SHEAF_VERSION_H
#define SHEAF_VERSION_H

#ifdef __cplusplus
extern "C" {
#endif

/* "0.1.0" of the library that is loaded. */
const char *sheaf_version(void);
/* How the library was built: "commit abc1234567, GNU 12.2.0, Release build". */
const char *sheaf_build_info(void);

#ifdef __cplusplus
}
#endif
#endif
