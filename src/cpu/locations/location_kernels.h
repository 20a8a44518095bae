// What sums over samples at a few test locations (locations.cpp) ask of the instruction set, as a table of functions:
// location_kernels.cpp is compiled once for each, as tile.cpp is.
#pragma once

#include <cstdint>

#include "kcalib/profiles.h"

namespace kcalib {

// Test locations of predicted probabilities: rows of points, each with a class. Places of the locations by class:
// those of class group g are members[starts[g]], .., members[starts[g + 1] - 1].
struct TestLocations {
  KernelProgram kernel;  // of the metrics EUCLIDEAN, CITYBLOCK and DOT
  const double* points;
  const int64_t* classes;
  int64_t n_locations, m;
  const int64_t *members, *starts;
  int64_t n_groups;
};

// With k_j = k(t_j, p) and c_j the class of location j, sums over samples, each added to what is there:
struct LocationSums {
  double* differences;  // k_j ([y = c_j] - p_{c_j})
  double* covariance;   // of these values for y drawn from p, entries j <= l of a square; null: not wanted
  double* largest;      // the largest |k_j| so far; with the covariance
};

struct LocationFunctions {
  // Numbers of memory, aligned to a line of the cache, that the others take.
  int64_t (*memory)(const TestLocations& locations);
  void (*add)(const TestLocations& locations, const double* p, const int64_t* labels, int64_t rows, double* memory,
              const LocationSums& sums);
  // sum_i E (v^T gram v)^2 of the values v at the locations, for y drawn from p_i.
  double (*fourth)(const TestLocations& locations, const double* p, int64_t rows, const double* gram, double* memory);
};

}  // namespace kcalib
