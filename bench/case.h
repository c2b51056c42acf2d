// A benchmark case verifies an operation against the double-precision reference, times it, and compares the time with its floor: the time
// that the arithmetic or the memory traffic alone would take at the ceilings measured in the same run. A case is one file bench/<name>.cpp
// and one line in cases.def.
#pragma once
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "based/runtime/torch.h"

namespace based::bench {

struct Result {
  std::string name;   // for example "taylor_attention forward"
  std::string shape;  // for example "B=1 N=4096 H=16 d'=16 d=64 fp32"
  double value = 0;
  std::string unit;                      // ms, tokens/s, …
  double floor = 0;                      // the best value that the ceiling allows, in the same unit; 0: none
  double floor_fraction = 0;             // achieved fraction of the ceiling; 1 is at the floor
  std::string bound;                     // the ceiling: "fp32 GEMM 204 GFLOP/s"
  double error = 0;                      // compared with the reference
  std::map<std::string, double> more{};  // further figures, for example a ratio
  std::string headline{};                // key of this result in the tables of README and CHANGELOG (tools/results); empty: none
};

// The machine's peak rates on `device`. Each is measured at its first use, once per run.
struct Ceilings {
  torch::Device device = torch::kCPU;
  bool quick = false;                      // on the CPU: small buffers and matrices; the rates are not meaningful
  double read_gb_s();                      // all threads sum a buffer larger than the caches; CPU only
  double copy_gb_s();                      // bytes read plus bytes written
  double gemm_gflops(torch::Dtype dtype);  // square matrix product in LibTorch
  // The rate that a bf16 model's matrix products can reach. On a CPU without AVX-512 LibTorch's bf16 product is slower than the fp32 one;
  // then this is the fp32 rate.
  double product_gflops();
  // Measures the rates of decode_floor and prefill_floor now. On a GPU this takes 8 GiB, which a large model may not leave free.
  void measure();

 private:
  double read_ = 0, copy_ = 0;
  std::map<torch::Dtype, double> gemm_;
};

struct Context {
  torch::Device device = torch::kCPU;
  Ceilings ceilings;
  bool quick = false;                // smaller sizes and fewer repeats, to check that the cases run
  std::string model;                 // folder of a user's model, for the cases that support it; empty: based-360m with random weights
  std::vector<std::string> presets;  // --compare: models to compare; otherwise restricts cases of whole models; empty: no restriction
  std::vector<Result> results;
  std::function<void(const Result&)> report;  // called for every finished result

  void add(Result result);
  bool measures(const std::string& preset) const;  // whether `presets` is empty or contains the preset
  // Whether `presets` is empty or contains a prefix of the name; for cases with their own names of models.
  bool measures_beginning(const std::string& name) const;
};

struct Case {
  const char* name;
  const char* summary;
  void (*run)(Context&);
  bool on_gpu = false;                  // true: measures a GPU; false: measures the CPU
  void (*compare)(Context&) = nullptr;  // compares models, on the CPU or a GPU; null if the case has no comparison
  bool names_its_models = false;        // whether the case has its own names of models instead of presets
};
const std::vector<Case>& cases();
#define BASED_BENCH(name) extern const Case case_##name;
#include "bench/cases.def"
#undef BASED_BENCH

// Seconds of one call. The body must wait for a GPU itself.
double seconds_of(const std::function<void()>& body);
// The median of `repeats` calls, after one uncounted call. `prepare`, if not empty, runs before each call and is not timed.
double median_seconds(const std::function<void()>& body, int repeats = 5, const std::function<void()>& prepare = {});
// The largest difference divided by the largest entry of the reference.
double relative_difference(const torch::Tensor& value, const torch::Tensor& reference);
// Returns the relative difference. Throws Error if it exceeds `tolerance`, so that wrong results are never timed.
double verify(const torch::Tensor& value, const torch::Tensor& reference, double tolerance, const std::string& what);

}  // namespace based::bench
