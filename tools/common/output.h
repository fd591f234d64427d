/* The end of a tool's standard output. */
#ifndef SHEAF_TOOLS_OUTPUT_H
#define SHEAF_TOOLS_OUTPUT_H

/* Writes out what is still buffered. Returns `code`, or 1 after a message if code is 0 and not all
 * of the output could be written: a full disk must not look like a result. For the return of
 * main. */
int output_end(int code);

#endif
