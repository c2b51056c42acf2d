// The figures of whole models: prefill against the length, and generation against the number of sequences and against the length. The
// models have random weights, and bf16 activations and weights.
#include <array>

#include "based/models/device.h"
#include "bench/figures.h"
#include "bench/listing.h"
#include "bench/model.h"

namespace based::bench {
namespace model_figure {

constexpr const char *kBased = "Based, our kernels", *kListing = "Based, PyTorch listing", *kAttention = "Transformer++", *kMamba = "Mamba";
constexpr const char* kOfPaper = " (paper, H100)";

// The presets of one size of model, and the paper's numbers and claims for it.
struct ModelSize {
  const char *name, *in_words;  // "1.3b", "1.3B"
  const char *based, *attention, *mamba;
  int64_t paper_prefill_length;
  // Tokens per ms of Based, Transformer++ and Mamba: the paper's table of results; generation of 128 sequences.
  std::array<double, 3> paper_prefill, paper_generation;
  // How many times as fast as Transformer++ and Mamba Based is, in section 6: prefill of 2 x 4,096 tokens, generation of 128 sequences.
  std::array<double, 2> claimed_prefill, claimed_generation;
};

// "118 % over Mamba" in section 6 is 18 % by the paper's own table, so that is the claim here.
constexpr ModelSize k360m{
    "360m",       "360M",      "based-360m", "attn-360m", "mamba-360m", 16384, {514.57, 207.77, 267.09}, {47.23, 23.82, 39.95},
    {1.28, 1.76}, {1.98, 1.18}};
constexpr ModelSize k1300m{
    "1.3b",       "1.3B",    "based-1.4b", "attn-1.4b", "mamba-1.3b", 4096, {161.71, 103.50, 112.22}, {24.28, 0.99, 25.69},
    {1.56, 1.44}, {24, 0.95}};

ModelSize in_small(ModelSize size) {
  size.based = "based-tiny", size.attention = "attn-tiny", size.mamba = "mamba-tiny";
  return size;
}

struct Contender {
  std::string label, how;
  ModelConfig config;
  Steps steps = Steps::fused;
  bool ours = false;
};

std::vector<Contender> contenders(const ModelSize& size) {
  const auto preset = [](const char* name) { return std::string(name) + ", bf16"; };
  return {{kBased, preset(size.based), find_preset(size.based), Steps::fused, true},
          {kListing, preset(size.based) + "; its Taylor layers by the paper's PyTorch listing, a step recorded as a CUDA graph",
           listing::without_our_kernels(find_preset(size.based)), Steps::recorded},
          {kAttention, preset(size.attention), find_preset(size.attention)},
          {kMamba, preset(size.mamba), find_preset(size.mamba)}};
}

// Measures every model at these sizes. `measure` returns tokens per ms.
using MeasureModel = std::function<Measured(const Contender&, LanguageModel&, int64_t size)>;
void measure_models(FigureRun& run, Figure& figure, const ModelSize& size, const std::vector<int64_t>& sizes, const MeasureModel& measure) {
  run.context.ceilings.measure();
  for (const Contender& contender : contenders(size)) {
    const BenchModel bench = verified_config(run.context, contender.label, contender.config);
    measure_series(run, figure, {contender.label, contender.how, contender.ours}, sizes,
                   [&](int64_t at) { return measure(contender, *bench.model, at); });
  }
}

void add_paper(Figure& figure, double x, const std::array<double, 3>& values) {
  const std::array<const char*, 3> labels{kBased, kAttention, kMamba};
  for (size_t i = 0; i < labels.size(); ++i) {
    const std::string label = (i == 0 ? std::string("Based") : std::string(labels[i])) + kOfPaper;
    figure.series.push_back({label, "the paper's table of results", false, true, {{.x = x, .value = values[i]}}});
  }
}

const FigurePoint* find_point(const Figure& figure, const std::string& label, double x) {
  for (const FigureSeries& series : figure.series) {
    if (series.label != label) continue;
    for (const FigurePoint& point : series.points)
      if (point.x == x) return &point;
  }
  return nullptr;
}

// Judges the claim that Based is `claimed` times as fast as `other` at `x`.
FigureVerdict judge(const Figure& figure, const std::string& claim, const std::string& other, double x, double claimed) {
  FigureVerdict verdict{claim, kBased, other, x, claimed};
  const FigurePoint *ours = find_point(figure, kBased, x), *theirs = find_point(figure, other, x),
                    *in_paper = find_point(figure, other + kOfPaper, x);
  const auto missing = [](const FigurePoint* point) { return point == nullptr ? "not measured" : point->missing; };
  if (!missing(ours).empty()) {
    verdict.why = std::string(kBased) + ": " + missing(ours);
  } else if (!missing(theirs).empty()) {
    verdict.why = other + ": " + missing(theirs);
  } else {
    verdict.measured = ours->value / theirs->value;
    if (in_paper != nullptr) verdict.to_paper = ours->value / in_paper->value;
  }
  return verdict;
}

// The verdicts on both claims. With small sizes they have no meaning, and are made at a size that was measured.
void add_verdicts(const FigureRun& run, Figure& figure, const std::string& what, double x, const std::array<double, 2>& claimed) {
  const bool quick = run.context.quick;
  const double at = quick ? figure.series.front().points.back().x : x;
  const std::array<const char*, 2> others{kAttention, kMamba};
  for (size_t i = 0; i < others.size(); ++i)
    figure.verdicts.push_back(
        judge(figure, std::string(quick ? "small sizes, without meaning: " : "") + what + ", Based compared with " + others[i], others[i],
              at, claimed[i]));
}

Measured rate(double tokens, double seconds, const FloorTime& floor_of_same) {
  return {tokens / seconds / 1e3, tokens / floor_of_same.seconds / 1e3, floor_of_same.bound};
}

Figure prefill(FigureRun& run, const ModelSize& size) {
  const torch::InferenceMode inference;
  constexpr int64_t rows = 2;
  const bool quick = run.context.quick;
  Figure figure{std::string("prefill_") + size.name, std::string("Prefill against the length, models at ") + size.in_words,
                "2 sequences, logits of the last tokens", "tokens per sequence", "tokens/ms"};
  measure_models(run, figure, size, quick ? powers_of_two(4, 5) : powers_of_two(10, 16),
                 [&](const Contender&, LanguageModel& model, int64_t length) {
                   const FloorTime floor = prefill_floor(run.context, model, rows, length);
                   const int repeats = quick ? 2 : length > 8192 ? 5 : 11;
                   return rate(static_cast<double>(rows * length), prefill_seconds(model, rows, length, repeats), floor);
                 });
  add_paper(figure, static_cast<double>(size.paper_prefill_length), size.paper_prefill);
  add_verdicts(run, figure, std::string("prefill of 2 x 4,096 tokens at ") + size.in_words, 4096, size.claimed_prefill);
  return figure;
}

// Makes steps, and throws Error if a sequence has ended, so that a step of fewer sequences is never taken for one of all.
void run_steps(Engine& engine, int64_t steps) {
  engine.run(steps);
  synchronize(engine.model().device());
  if (engine.free_slots() > 0) throw Error("bench: a sequence has ended before the last step");
}

// As in the paper: no prompt, and 1,024 generated tokens. Sampling is included.
Figure generation_by_batch(FigureRun& run, const ModelSize& size) {
  const bool quick = run.context.quick;
  const int64_t tokens = quick ? 8 : 1024;
  Figure figure{std::string("generation_batch_") + size.name,
                std::string("Generation against the number of sequences, models at ") + size.in_words,
                std::to_string(tokens) + " tokens generated after a prompt of one token, sampling included", "sequences", "tokens/ms"};
  std::vector<int64_t> sizes = quick ? std::vector<int64_t>{1, 2} : std::vector<int64_t>{1, 4, 16, 64, 128, 256, 512};
  measure_models(run, figure, size, sizes, [&](const Contender& contender, LanguageModel& model, int64_t rows) {
    const std::unique_ptr<Engine> engine = filled_engine(model, rows, 1, tokens + 1, {.steps = contender.steps});
    FloorTime floor = decode_floor(run.context, *engine, rows, tokens / 2);
    floor.seconds *= static_cast<double>(tokens);
    return rate(static_cast<double>(rows * tokens), seconds_of([&] { run_steps(*engine, tokens); }), floor);
  });
  add_paper(figure, 128, size.paper_generation);
  add_verdicts(run, figure, std::string("generation of 1,024 tokens of 128 sequences at ") + size.in_words, 128, size.claimed_generation);
  return figure;
}

Figure generation_by_length(FigureRun& run, const ModelSize& size) {
  const bool quick = run.context.quick;
  const int64_t rows = quick ? 2 : 16, steps = quick ? 2 : kTimedSteps;
  const int repeats = quick ? 2 : 5;
  Figure figure{std::string("generation_length_") + size.name, std::string("Generation against the length, models at ") + size.in_words,
                std::to_string(rows) + " sequences, sampling included", "tokens in each sequence", "tokens/ms"};
  measure_models(run, figure, size, quick ? powers_of_two(4, 5) : powers_of_two(10, 16),
                 [&](const Contender& contender, LanguageModel& model, int64_t length) {
                   const std::unique_ptr<Engine> engine =
                       filled_engine(model, rows, length, steps * (repeats + 1) + 1, {.steps = contender.steps});
                   FloorTime floor = decode_floor(run.context, *engine, rows, length);
                   floor.seconds *= static_cast<double>(steps);
                   return rate(static_cast<double>(rows * steps), median_seconds([&] { run_steps(*engine, steps); }, repeats), floor);
                 });
  return figure;
}

FigurePart part(const std::string& name, const std::string& summary, Figure (*measure)(FigureRun&, const ModelSize&),
                const ModelSize& size) {
  return {name + "_" + size.name, summary + ", models at " + size.in_words,
          [=](FigureRun& run) { return measure(run, run.context.quick ? in_small(size) : size); }};
}

}  // namespace model_figure

std::vector<FigurePart> model_figures() {
  using namespace model_figure;
  std::vector<FigurePart> parts;
  for (const ModelSize* size : {&k360m, &k1300m}) {
    parts.push_back(part("prefill", "prefill of 2 sequences against their length", prefill, *size));
    parts.push_back(part("generation_batch", "generation of 1,024 tokens against the number of sequences", generation_by_batch, *size));
    parts.push_back(part("generation_length", "generation of 16 sequences against their length", generation_by_length, *size));
  }
  return parts;
}

}  // namespace based::bench
