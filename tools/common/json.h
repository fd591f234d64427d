/* Shared by tools that print JSON. */
#ifndef SHEAF_TOOLS_JSON_H
#define SHEAF_TOOLS_JSON_H

#include <stddef.h>
#include <stdio.h>

/* A JSON string, quotes included; bytes that are not UTF-8 become U+FFFD. */
void json_string(FILE *f, const char *text, size_t n);
/* With so many decimals; null if v is an infinity or NaN, which JSON has not. */
void json_number(FILE *f, double v, int decimals);

#endif
