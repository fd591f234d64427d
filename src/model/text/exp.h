/* exp(x) of the sampler: the same bits on every machine. */
#ifndef SHEAF_MODEL_EXP_H
#define SHEAF_MODEL_EXP_H

/* For x <= 0; relative error below 1e-14. */
double sheaf__exp_negative(double x);

#endif
