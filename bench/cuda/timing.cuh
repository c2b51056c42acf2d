// Timing by graph replay, and the result file.
#pragma once
#include <functional>
#include <string>
#include <vector>

#include "bench/cuda/problems/device_memory.cuh"
#include "bench/cuda/problems/failures.cuh"

namespace based::bench {

// Median milliseconds of one call. A graph of calls that take the working sets 0 … sets − 1 in turn is replayed; the sets together should
// be larger than the L2 cache.
double median_ms(int sets, const std::function<void(int set, cudaStream_t)>& call);
// From now on median_ms makes one plain call, for a profiler.
void call_once_only();
// Working sets of `bytes` each so that together they pass the L2 cache by far.
int working_sets(int64_t bytes);

struct Result {
  std::string headline;  // the figure's name in summaries; empty: in none
  std::string name;
  double value = 0;
  std::string unit = "ms";
  double floor = 0;
  double error = -1;  // against the double reference; negative: not compared
};

// A timed case fails where its result is wrong.
class Report : public Failures {
 public:
  void add(const Result& result);
  // Times a call beside the time that its bytes take; see median_ms.
  void time(const std::string& name, int64_t bytes, int sets, const std::function<void(int set, cudaStream_t)>& call);
  void write(const std::string& path, const std::string& commit) const;

 private:
  std::vector<Result> results_;
};

// Of a copy on this device, read and written, measured at the first call.
double bytes_per_ms();

}  // namespace based::bench
