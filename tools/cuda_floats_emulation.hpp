// What `cuda_floats.cuh` has beside the functions of all languages.

inline float near_exp2(float x) { return exp2f(x); }

inline float near_reciprocal(float x) { return 1 / x; }
