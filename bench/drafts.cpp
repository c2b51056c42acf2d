// Generation with and without drafts on the CPU, in one run, greedy. A model with random weights repeats itself, which n-grams draft. Texts
// that are harder to draft are simulated by drafts of which a given share is wrong.
#include <algorithm>
#include <chrono>

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

Timed generate(LanguageModel& model, const Ids& prompt, int64_t tokens, DraftOptions drafts) {
  Engine engine(model, {.drafts = std::move(drafts)});
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
    context.add({"draft step",
                 bench.name + " T=" + std::to_string(tokens),
                 seconds * 1e3,
                 "ms",
                 floor.seconds * 1e3,
                 floor.seconds / seconds,
                 floor.bound,
                 bench.error,
                 {{"times_one_token", seconds / one}, {"ms_without_kept_states", without * 1e3}}});
  }
}

void run(Context& context) {
  const torch::InferenceMode inference;
  const BenchModel bench = verified_model(context);
  const double rate = context.ceilings.read_gb_s();
  const Floor floor{weight_bytes(*bench.model) / (rate * 1e9),
                    "weights read once a step at " + std::to_string(static_cast<int64_t>(rate)) + " GB/s"};
  time_steps(context, bench, floor);
  const int64_t tokens = context.quick ? 32 : 256;
  Ids prompt;
  for (int64_t i = 0; i < 64; ++i) prompt.push_back((7 + 13 * (i % 16)) % bench.model->config().vocab_size);
  const Ids text = generate(*bench.model, prompt, tokens, {}).text;
  struct Given {
    const char* name;
    std::function<std::shared_ptr<Drafter>()> make;
  };
  const std::vector<Given> all{{"n-grams", [] { return make_ngram_drafter(); }},
                               {"3 of 4 right", [&] { return std::make_shared<SimulatedDrafter>(text, 4); }},
                               {"1 of 2 right", [&] { return std::make_shared<SimulatedDrafter>(text, 2); }},
                               {"none right", [&] { return std::make_shared<SimulatedDrafter>(text, 1); }}};
  for (const Given& given : all) {
    std::vector<double> plain, drafted;  // alternating, so that drift of the machine's speed affects both
    Timed made;
    for (int i = 0; i < (context.quick ? 1 : 3); ++i) {
      plain.push_back(generate(*bench.model, prompt, tokens, {}).seconds);
      made = generate(*bench.model, prompt, tokens, {.drafter = given.make()});
      drafted.push_back(made.seconds);
      if (made.text != text) throw Error(std::string("drafts change the text: ") + given.name);
    }
    const auto median = [](std::vector<double> seconds) {
      std::sort(seconds.begin(), seconds.end());
      return seconds[seconds.size() / 2];
    };
    const double tokens_per_second = static_cast<double>(tokens) / median(drafted), best = made.counts.tokens_per_step() / floor.seconds;
    context.add({"drafts",
                 bench.name + " " + given.name,
                 tokens_per_second,
                 "tokens/s",
                 best,
                 tokens_per_second / best,
                 floor.bound,
                 bench.error,
                 {{"times_plain_steps", median(plain) / median(drafted)},
                  {"tokens_per_step", made.counts.tokens_per_step()},
                  {"drafted", static_cast<double>(made.counts.drafted)},
                  {"accepted", static_cast<double>(made.counts.accepted)}}});
  }
}

}  // namespace drafts_case

const Case case_drafts{"drafts", "generation with and without drafts; steps of 1, 2, 4 and 8 tokens", drafts_case::run};

}  // namespace based::bench
