/* Text as JSON. */
#include "json.h"

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
        size_t k = 1;
        while (len && k < len && i + k < n && (p[i + k] & 0xc0) == 0x80) k++;
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
