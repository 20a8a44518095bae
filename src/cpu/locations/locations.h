// Sums over samples of their values at a few test locations: the UCME and its test, in passes over the predictions that
// store nothing of their size.
#pragma once

#include <cstdint>

#include "cpu/locations/location_kernels.h"
#include "cpu/pairs/sweep.h"

namespace kcalib {

// Predictions, rows of p (n x m), and labels 0..m-1 (not looked at by `location_fourth`).
struct LocatedSamples {
  const double* p;
  const int64_t* labels;
  int64_t n, m;
};
struct LocationPoints {
  KernelProgram kernel;
  const double* points;
  const int64_t* classes;
  int64_t n_locations;
};

// Each returns false if it was stopped. Both halves of the covariance are written; it may be null, and `largest` then is.
bool location_sums(const LocatedSamples& samples, const LocationPoints& points, const Run& run, double* differences,
                   double* covariance, double* largest);
bool location_fourth(const LocatedSamples& samples, const LocationPoints& points, const double* gram, const Run& run,
                     double* fourth);

}  // namespace kcalib
