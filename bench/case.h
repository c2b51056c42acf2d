// A benchmark case verifies what it is about to time against the double reference, times it, and reports it beside its floor: the time that
// the arithmetic or the bytes alone would take at the ceilings measured in the same run. A case is one file bench/<name>.cpp and one line
// in cases.def.
#pragma once
#include <functional>
#include <map>
#include <string>
#include <vector>

namespace based::bench {

struct Result {
  std::string name;   // for example "taylor_attention forward"
  std::string shape;  // for example "B=1 N=4096 H=16 d'=16 d=64 fp32"
  double value = 0;
  std::string unit;                      // ms, tokens/s, …
  double floor = 0;                      // in the same unit: the best that the ceiling allows; 0: none
  double floor_fraction = 0;             // how near: 1 is at the floor
  std::string bound;                     // which ceiling: "fp32 GEMM 204 GFLOP/s"
  double error = 0;                      // against the reference
  std::map<std::string, double> more{};  // further figures, for example a ratio
  std::string headline{};                // the key by which pages name this figure; empty: none
};

// What this machine can do, measured on `device` when first asked for, each once a run.
struct Ceilings {
  torch::Device device = torch::kCPU;
  double read_gb_s();                      // all threads summing a buffer larger than the caches; CPU only
  double copy_gb_s();                      // bytes read plus bytes written
  double gemm_gflops(torch::Dtype dtype);  // square matrix product through LibTorch
  // What a bf16 model's products can reach: on a CPU fp32's rate where LibTorch's bf16 product is the slower one (no AVX-512).
  double product_gflops();

 private:
  double read_ = 0, copy_ = 0;
  std::map<torch::Dtype, double> gemm_;
};

struct Context {
  torch::Device device = torch::kCPU;
  Ceilings ceilings;
  bool quick = false;                // smaller sizes, fewer repeats: to see that it runs
  std::string model;                 // a model's folder, for the cases that can measure a user's own; empty: based-360m with random weights
  std::vector<std::string> presets;  // --compare: the models; otherwise those that cases of whole models keep to, empty: all of theirs
  std::vector<Result> results;
  std::function<void(const Result&)> report;  // called for every finished result

  void add(Result result);
  bool measures(const std::string& preset) const;
  // The same of a case's own models, where the beginning of a name stands for all that begin so.
  bool measures_beginning(const std::string& name) const;
};

struct Case {
  const char* name;
  const char* summary;
  void (*run)(Context&);
  bool on_gpu = false;                  // measures a GPU; others measure the CPU
  void (*compare)(Context&) = nullptr;  // models side by side, on either; null: no such comparison
  bool names_its_models = false;        // by names of its own; others' are presets
};
const std::vector<Case>& cases();
#define BASED_BENCH(name) extern const Case case_##name;
#include "based/ops/torch.h"
#include "bench/cases.def"
#undef BASED_BENCH

// Seconds of one call: median of at least `repeats` calls after one that is not counted. A GPU's work is waited for where the body does.
double median_seconds(const std::function<void()>& body, int repeats = 5);
// The largest difference over the largest entry.
double relative_difference(const torch::Tensor& value, const torch::Tensor& reference);
// Throws Error where that exceeds `tolerance`: nothing wrong is timed. Returns it.
double verify(const torch::Tensor& value, const torch::Tensor& reference, double tolerance, const std::string& what);

}  // namespace based::bench
