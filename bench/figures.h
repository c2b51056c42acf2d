// The paper's efficiency figures, measured: curves over a size, the paper's own numbers beside them, and its claims judged. `based bench
// figures` runs them.
#pragma once
#include <functional>
#include <string>
#include <vector>

#include "based/core/json.h"
#include "based/core/plot.h"
#include "bench/case.h"

namespace based::bench {

struct FigurePoint {
  double x = 0;
  double value = 0;
  double floor = 0;          // the best value that the ceilings of the same run allow; 0: none
  std::string bound = {};    // the ceiling that sets the floor
  std::string missing = {};  // why there is no value, for example that the size does not fit into memory; empty: it was measured
};

struct FigureSeries {
  std::string label;
  std::string how;  // the operators or the model that were measured
  bool ours = false;
  bool paper = false;  // the paper's own numbers
  std::vector<FigurePoint> points = {};
};

// A claim of the paper: at `x`, the value of the series `ours` is `claimed` times that of `other`.
struct FigureVerdict {
  std::string claim, ours, other;
  double x = 0, claimed = 0;
  double measured = 0;   // the ratio here
  double to_paper = 0;   // our value divided by the paper's own value of `other`; 0: the paper gives none
  std::string why = {};  // why there is no ratio; empty: there is one
};

struct Figure {
  std::string name;             // also the name of its pictures
  std::string title, subtitle;  // the subtitle gives the sizes that are fixed
  std::string x_label, unit;    // unit: "ms" or "tokens/ms"
  std::vector<FigureSeries> series = {};
  std::vector<FigureVerdict> verdicts = {};
};

struct FigureRun {
  Context& context;  // quick: tiny sizes and models, which run on two CPU cores in seconds
  std::function<void(const Figure&, const FigureSeries&, const FigurePoint&)> report = {};  // called for each measured point
};

struct FigurePart {
  std::string name, summary;
  std::function<Figure(FigureRun&)> measure;
};
const std::vector<FigurePart>& figure_parts();
const FigurePart& find_figure(const std::string& name);  // throws UsageError that suggests the nearest name

Json to_json(const Figure& figure);
Figure figure_from_json(const Json& json);  // throws Error if a field is missing or has another type
Plot figure_plot(const Figure& figure, const std::string& footer);
std::string to_line(const Figure& figure, const FigureSeries& series, const FigurePoint& point);
std::string to_line(const FigureVerdict& verdict);

// --- for the files that measure figures

struct Measured {
  double value = 0, floor = 0;
  std::string bound = {};
};
// Measures a series at ascending sizes. A size that does not fit into memory, or that an operator refuses, gives a point without a value
// and with the reason. After a size that does not fit, larger ones are not tried.
void measure_series(FigureRun& run, Figure& figure, FigureSeries series, const std::vector<int64_t>& sizes,
                    const std::function<Measured(int64_t)>& measure);
// Seconds of call(0), call(1), … call(calls − 1), divided by `calls`: the median of `repeats` replays of one recording, which on a GPU is a
// CUDA graph, so that neither a launch's latency on the host nor PyTorch's dispatcher is counted.
double seconds_per_call(torch::Device device, int64_t calls, int repeats, const std::function<void(int64_t)>& call);
// A time in ms with the floor max(bytes at the copy rate, operations at the bf16 GEMM rate).
Measured time_with_floor(FigureRun& run, double seconds, double bytes, double operations);
// Copies of inputs of this many bytes that calls use in turn, so that none is still in the cache from an earlier call.
int64_t copies_beyond_cache(const Context& context, int64_t bytes);
// 2^first, …, 2^last
std::vector<int64_t> powers_of_two(int first, int last);

// The parts of figures_operators.cpp and figures_models.cpp.
std::vector<FigurePart> operator_figures();
std::vector<FigurePart> model_figures();

}  // namespace based::bench
