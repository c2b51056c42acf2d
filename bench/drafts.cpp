// Generation with and without drafts on the CPU or a GPU, in one run, greedy. Texts are simulated by drafts of which a given share is
// right. A large model with random weights rarely repeats two tokens, so that n-grams draft nothing; it repeats its last token if its
// layers add nothing to the embedding. A trained model (--model) also continues code and the summary of a text.
#include <algorithm>
#include <array>
#include <chrono>
#include <map>
#include <utility>

#include "based/data/tokenizer.h"
#include "based/generate/text_stream.h"
#include "bench/model.h"

namespace based::bench {
namespace drafts_case {

using Ids = std::vector<int64_t>;

// Drafts that continue as `text` does, but of which every `wrong`-th token is another one; 0: none is.
class SimulatedDrafter final : public Drafter {
 public:
  SimulatedDrafter(Ids text, size_t wrong) : text_(std::move(text)), wrong_(wrong) {}
  void draft(std::vector<Request>& requests) override {
    for (Request& request : requests) {
      const size_t begin = std::min(request.tokens->size(), text_.size());
      const size_t count = std::min(static_cast<size_t>(request.most), text_.size() - begin);
      for (size_t i = begin; i < begin + count; ++i)
        request.drafts.push_back(wrong_ > 0 && i % wrong_ == 0 ? (text_[i] == 0 ? 1 : 0) : text_[i]);
    }
  }
  void forget(int64_t /*sequence*/) override {}

 private:
  Ids text_;
  size_t wrong_;
};

struct Timed {
  Ids text;
  double seconds = 0;  // the steps take, without the prompt
  DraftCounts counts;
};

// The engine without drafts has the steps of the one with drafts: on a GPU only these give the same bits.
EngineOptions engine_options(const LanguageModel& model, DraftOptions drafts) {
  EngineOptions options{.ahead = model.device().is_cuda(), .drafts = std::move(drafts)};
  options.decode.fixed_rows = model.device().is_cuda();
  return options;
}

// The steps of such an engine with drafts, without them.
EngineOptions undrafted_options(const LanguageModel& model, bool by_repetition) {
  if (!by_repetition) return engine_options(model, {});
  return engine_options(model, {.drafter = make_ngram_drafter(), .most = 0, .by_repetition = true});
}

Timed generate(LanguageModel& model, const Ids& prompt, int64_t tokens, const EngineOptions& options) {
  Engine engine(model, options);
  const int64_t sequence = engine.add(prompt, {.sampling = {.temperature = 0}, .max_tokens = tokens});
  engine.read();
  const auto start = std::chrono::steady_clock::now();
  while (!engine.idle()) engine.step();
  return {engine.text(sequence), std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count(), engine.draft_counts()};
}

// The time in which the weights are read once.
struct Floor {
  double seconds = 0;
  std::string bound;
};

double median(std::vector<double> seconds) {
  std::sort(seconds.begin(), seconds.end());
  return seconds[seconds.size() / 2];
}

// Reports a step that reads `tokens` tokens.
void add_step(Context& context, const BenchModel& bench, const Floor& floor, int64_t tokens, double seconds,
              std::map<std::string, double> more) {
  context.add({"draft step", bench.name + " T=" + std::to_string(tokens), seconds * 1e3, "ms", floor.seconds * 1e3, floor.seconds / seconds,
               floor.bound, bench.error, std::move(more)});
}

// Times a GPU's steps of which all drafts are accepted, and those of an engine that takes no drafts.
void time_steps_of_gpu(Context& context, const BenchModel& bench, const Floor& floor, const Ids& prompt, const Ids& text) {
  const auto tokens = static_cast<int64_t>(text.size() - prompt.size());
  const int repeats = context.quick ? 1 : 3;
  const auto step_seconds = [&](const EngineOptions& options) {
    std::vector<double> all;
    for (int i = 0; i < repeats; ++i) {
      const Timed made = generate(*bench.model, prompt, tokens, options);
      all.push_back(made.seconds / static_cast<double>(made.counts.steps > 0 ? made.counts.steps : tokens));
    }
    return median(all);
  };
  const double usual = step_seconds({.ahead = true});
  double one = 0;
  for (const int64_t read : {1, 2, 4, 8}) {
    const auto drafter = std::make_shared<SimulatedDrafter>(text, 0);
    const DraftOptions drafts{.drafter = drafter, .most = read - 1, .adapts = false};
    const double seconds = step_seconds(engine_options(*bench.model, read > 1 ? drafts : DraftOptions()));
    if (read == 1) one = seconds;
    add_step(context, bench, floor, read, seconds, {{"times_one_token", seconds / one}, {"times_a_step_without_drafts", seconds / usual}});
  }
}

// Times steps of several tokens of which all are accepted, with and without keeping the states between them.
void time_steps(Context& context, const BenchModel& bench, const Floor& floor) {
  const int repeats = context.quick ? 3 : 21;
  ModelState state = bench.model->make_state(1);
  double one = 0;
  for (const int64_t tokens : {1, 2, 4, 8}) {
    const torch::Tensor ids = random_ids(*bench.model, tokens), slots = torch::zeros({tokens}, torch::kInt64);
    const std::vector<int64_t> rounds(static_cast<size_t>(tokens), 1);
    const auto timed = [&](bool keeps) {
      return median_seconds(
          [&] {
            StateJournal journal;
            bench.model->logits(bench.model->step_rounds(ids, state, slots, rounds, keeps ? &journal : nullptr));
          },
          repeats);
    };
    const double seconds = timed(true), without = timed(false);
    if (tokens == 1) one = seconds;
    add_step(context, bench, floor, tokens, seconds, {{"times_one_token", seconds / one}, {"ms_without_kept_states", without * 1e3}});
  }
}

// Prompts that a trained model continues: code, and a text whose summary repeats its words.
struct Text {
  const char *name, *prompt;
};
constexpr std::array kTexts{
    Text{"code",
         "struct Point {\n  double x = 0;\n  double y = 0;\n};\n\nPoint add(Point a, Point b) {\n  Point c;\n  c.x = a.x + b.x;\n"
         "  c.y = a.y + b.y;\n  return c;\n}\n\nPoint subtract(Point a, Point b) {\n  Point c;\n  c.x = a.x - b.x;\n  c.y = a.y - b.y;\n"
         "  return c;\n}\n\nPoint multiply(Point a, Point b) {\n"},
    Text{"summary",
         "The river rises in the northern hills and flows to the sea. In the northern hills it is narrow and fast. Below the hills it is "
         "wide and slow, and ships carry grain from the plain to the harbour at the sea. Each spring the river floods the plain, and the "
         "flood leaves the soil that feeds the grain. In short: The river rises in the northern hills and"},
};

// One prompt, continued with and without drafts by turns, so that drift of the machine's speed affects both.
struct Comparison {
  std::string name;
  Ids prompt, text;  // `text`: the prompt and its continuation
  std::function<std::shared_ptr<Drafter>()> make;
  bool by_repetition = false;
};
void compare(Context& context, const BenchModel& bench, const Floor& floor, const Comparison& given) {
  const auto tokens = static_cast<int64_t>(given.text.size() - given.prompt.size());
  const bool is_gpu = bench.model->device().is_cuda();
  std::vector<double> plain, drafted, usual;
  Timed made;
  for (int i = 0; i < (context.quick ? 1 : 3); ++i) {
    plain.push_back(generate(*bench.model, given.prompt, tokens, undrafted_options(*bench.model, given.by_repetition)).seconds);
    made = generate(*bench.model, given.prompt, tokens,
                    engine_options(*bench.model, {.drafter = given.make(), .by_repetition = given.by_repetition}));
    drafted.push_back(made.seconds);
    if (is_gpu) usual.push_back(generate(*bench.model, given.prompt, tokens, {.ahead = true}).seconds);
    if (made.text != given.text) throw Error("drafts change the text: " + given.name);
  }
  const double tokens_per_second = static_cast<double>(tokens) / median(drafted), best = made.counts.tokens_per_step() / floor.seconds;
  Result result{"drafts",
                bench.name + " " + given.name,
                tokens_per_second,
                "tokens/s",
                best,
                tokens_per_second / best,
                floor.bound,
                bench.error,
                {{"times_plain_steps", median(plain) / median(drafted)},
                 {"tokens_per_step", made.counts.tokens_per_step()},
                 {"one_row_steps", static_cast<double>(made.counts.one_row)},
                 {"drafted", static_cast<double>(made.counts.drafted)},
                 {"accepted", static_cast<double>(made.counts.accepted)}}};
  if (is_gpu) result.more["times_an_engine_without_drafts"] = median(usual) / median(drafted);  // whose steps are faster
  context.add(std::move(result));
}

// Layers that add nothing to the residual stream while this exists, so that the model repeats its last token. Steps take the same time.
class WithoutLayers {
 public:
  explicit WithoutLayers(LanguageModel& model) {
    for (const auto& parameter : model.named_parameters()) {
      const std::string& name = parameter.key();
      const auto belongs_to = [&](const char* layer) { return name.find(layer) != std::string::npos; };
      if (!belongs_to("out_proj.") && !belongs_to("o_proj.") && !belongs_to("fc2.")) continue;
      kept_.emplace_back(parameter.value(), parameter.value().clone());
      parameter.value().zero_();
    }
  }
  WithoutLayers(const WithoutLayers&) = delete;
  WithoutLayers& operator=(const WithoutLayers&) = delete;
  ~WithoutLayers() {
    for (auto& [parameter, values] : kept_) parameter.copy_(values);
  }

 private:
  std::vector<std::pair<torch::Tensor, torch::Tensor>> kept_;
};

void run(Context& context) {
  const torch::InferenceMode inference;
  const BenchModel bench = verified_model(context);
  LanguageModel& model = *bench.model;
  const bool is_gpu = model.device().is_cuda();
  const double rate = is_gpu ? context.ceilings.copy_gb_s() : context.ceilings.read_gb_s();
  const Floor floor{weight_bytes(model) / (rate * 1e9),
                    "weights read once a step at " + std::to_string(static_cast<int64_t>(rate)) + " GB/s"};
  const int64_t tokens = context.quick ? 32 : 256;
  const auto text_of = [&](const Ids& prompt, bool by_repetition) {
    return generate(model, prompt, tokens, undrafted_options(model, by_repetition)).text;
  };
  const auto of_ngrams = [&](const std::string& name, const Ids& prompt) {
    return Comparison{name, prompt, text_of(prompt, true), [] { return make_ngram_drafter(); }, /*by_repetition=*/true};
  };
  Ids prompt;
  for (int64_t i = 0; i < 64; ++i) prompt.push_back((7 + 13 * (i % 16)) % model.config().vocab_size);
  const Ids text = text_of(prompt, false);
  is_gpu ? time_steps_of_gpu(context, bench, floor, prompt, text) : time_steps(context, bench, floor);
  std::vector<Comparison> all{of_ngrams("n-grams", prompt),
                              {"all right", prompt, text, [&] { return std::make_shared<SimulatedDrafter>(text, 0); }},
                              {"3 of 4 right", prompt, text, [&] { return std::make_shared<SimulatedDrafter>(text, 4); }},
                              {"1 of 2 right", prompt, text, [&] { return std::make_shared<SimulatedDrafter>(text, 2); }},
                              {"none right", prompt, text, [&] { return std::make_shared<SimulatedDrafter>(text, 1); }}};
  if (!context.model.empty()) {
    const auto tokenizer = make_tokenizer(context.model);
    for (const Text& one : kTexts) all.push_back(of_ngrams(std::string("n-grams, ") + one.name, encode_ids(*tokenizer, one.prompt)));
  }
  for (const Comparison& given : all) compare(context, bench, floor, given);
  if (!context.model.empty()) return;
  const WithoutLayers repeats(model);
  compare(context, bench, floor, of_ngrams("n-grams, one token repeated", prompt));
}

}  // namespace drafts_case

const Case case_drafts{"drafts", "generation with and without drafts; steps of 1, 2, 4 and 8 tokens", drafts_case::run};
const Case case_gpu_drafts{"gpu_drafts", "generation with and without drafts on a GPU; steps of 1, 2, 4 and 8 tokens", drafts_case::run,
                           true};

}  // namespace based::bench
