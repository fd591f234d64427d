/* In a collective, all ranks wait for the last one, which itself waits for none. So the rank with the
 * least wait was the last most of the time. */
#include "common/straggler.h"

/* Ranks with even shares differ by some percent. */
static const double LEAST_SHARE = 0.2;

struct straggler straggler_find(const double *wait_s, int n, double seconds) {
    struct straggler s = {.rank = -1};
    double sum = 0;
    int taking_part = 0, least = -1;
    for (int i = 0; i < n; i++) {
        if (wait_s[i] < 0) continue;
        sum += wait_s[i];
        taking_part++;
        if (least < 0 || wait_s[i] < wait_s[least]) least = i;
    }
    if (taking_part < 2 || !(seconds > 0)) return s;
    const double lost = (sum - wait_s[least]) / (taking_part - 1) - wait_s[least];
    if (lost < LEAST_SHARE * seconds) return s;
    return (struct straggler){least, lost, lost / seconds};
}
