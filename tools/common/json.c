/* Text as JSON. */
#include "json.h"

#include <math.h>

void json_string(FILE *f, const char *text, size_t n) {
    const unsigned char *p = (const unsigned char *)text;
    fputc('"', f);
    for (size_t i = 0; i < n;) {
        unsigned char c = p[i];
        size_t len = c < 0x80                ? 1
                     : c >= 0xc2 && c < 0xe0 ? 2
                     : c >= 0xe0 && c < 0xf0 ? 3
                     : c >= 0xf0 && c < 0xf5 ? 4
                                             : 0;
        /* of the second byte: none is spelled longer than it must be, no surrogate, none behind
         * U+10FFFF */
        const unsigned char least = c == 0xe0 ? 0xa0 : c == 0xf0 ? 0x90 : 0x80;
        const unsigned char most = c == 0xed ? 0x9f : c == 0xf4 ? 0x8f : 0xbf;
        size_t k = 1;
        while (len && k < len && i + k < n && p[i + k] >= (k == 1 ? least : 0x80) &&
               p[i + k] <= (k == 1 ? most : 0xbf))
            k++;
        if (len == 1) {
            if (c == '"' || c == '\\')
                fprintf(f, "\\%c", c);
            else if (c < 0x20)
                fprintf(f, "\\u%04x", c);
            else
                fputc(c, f);
        } else if (len && k == len) {
            fwrite(p + i, 1, len, f);
        } else {
            fputs("\\ufffd", f);
            len = k;
        }
        i += len;
    }
    fputc('"', f);
}

void json_number(FILE *f, double v, int decimals) {
    if (isfinite(v))
        fprintf(f, "%.*f", decimals, v);
    else
        fputs("null", f);
}
