/* Whether the suite runs under a sanitizer, which makes a run several times slower and finds in a few shapes, members
 * or ranks what it finds in all. */
#ifndef SHEAF_TESTS_SANITIZER_H
#define SHEAF_TESTS_SANITIZER_H

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
enum { SANITIZED = 1 };
#else
enum { SANITIZED = 0 };
#endif

#endif
