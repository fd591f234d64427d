/* Command lines: texts that end at zeros are the arguments of sheaf-run; each is read as --split as
 * well. */
#include "fuzz.h"

#include "model/run/session.h"
#include "run/options.h"

enum { ARGUMENTS = 12, ARGUMENT_BYTES = 256, MEMBERS = 3 };

static void check_shares(const char *text) {
    double shares[MEMBERS] = {0}, sum = 0;
    if (sheaf__session_parse_shares(text, MEMBERS, shares)) return;
    for (int i = 0; i < MEMBERS; i++) {
        MUST(shares[i] >= 0 && shares[i] <= 1e12);
        sum += shares[i];
    }
    MUST(sum > 0);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    char name[] = "sheaf-run", text[ARGUMENTS][ARGUMENT_BYTES], *argv[ARGUMENTS + 1] = {name};
    struct fuzz_bytes b = {data, size};
    struct run_options options;
    int n = 0;
    setenv("PMI_RANK", "1", 1); /* another rank than the first prints no notes */
    while (b.left && n < ARGUMENTS) {
        argv[1 + n] = fuzz_text(&b, text[n], sizeof text[n]);
        check_shares(argv[1 + n]);
        n++;
    }
    if (run_options_parse(n + 1, argv, &options)) return 0;
    MUST(options.n_predict >= -1);
    MUST(options.sampler.temperature >= 0 && options.sampler.temperature <= 1000);
    MUST(options.n_batch >= 0 && options.n_ctx >= RUN_CTX_DEFAULT);
    MUST(options.n_stop >= 0 && options.n_stop <= OPTION_MAX_LIST);
    return 0;
}
