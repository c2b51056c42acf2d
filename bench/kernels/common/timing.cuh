// Timing by graph replay, and the result file. A file of timed cases registers itself under a name for the command line:
//   const DefineFamily<Report> kFoo("foo", time_foo);  // void time_foo(Report&), in bench/kernels/<family>/foo.cu
#pragma once
#include <functional>
#include <string>
#include <vector>

#include "bench/kernels/common/problems/device_memory.cuh"
#include "bench/kernels/common/problems/failures.cuh"
#include "bench/kernels/common/problems/families.h"

namespace based::bench {

constexpr int64_t kTrainedTokens = 16 * 2048;  // tokens of a training batch

// Median milliseconds of one call. Replays a graph of calls, which use the working sets 0 … sets − 1 in turn; together the sets should be
// larger than the L2 cache.
double median_ms(int sets, const std::function<void(int set, cudaStream_t)>& call);
// After this call median_ms makes one plain call, for a profiler.
void call_once_only();
// Number of working sets of `bytes` each that together are much larger than the L2 cache.
int working_sets(int64_t bytes);

struct Result {
  std::string headline;  // name in summaries; empty: not in summaries
  std::string name;
  double value = 0;
  std::string unit = "ms";
  double floor = 0;
  double error = -1;  // relative to the double reference; negative: not compared
};

// Reports the times; a timed case fails where its result is wrong.
class Report : public Failures {
 public:
  void add(const Result& result);
  // Times a call and compares it with the time that its bytes take; see median_ms.
  void time(const std::string& name, int64_t bytes, int sets, const std::function<void(int set, cudaStream_t)>& call);
  void write(const std::string& path, const std::string& commit) const;

 private:
  std::vector<Result> results_;
};

// Bytes read and written a millisecond by a copy on this device, measured at the first call.
double bytes_per_ms();

}  // namespace based::bench
