/* The real header's conversions are used on GPUs only: kernel.cuh takes those of src/core here. */
