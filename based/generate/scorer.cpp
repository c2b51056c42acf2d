#include "based/generate/scorer.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <numeric>
#include <optional>
#include <utility>

#include "based/core/log.h"
#include "based/models/limits.h"
#include "based/runtime/transfer.h"

namespace based {
namespace {

// The steps that a prefix adds take a CPU about as long as reading a few tokens; a GPU reads hundreds in that time (docs/evaluation.md).
// Continuing from a copied state costs time besides, in proportion to its bytes. `one`: the state of one sequence.
SharingCosts sharing_costs(const ScorerOptions& options, const LanguageModel& model, const ModelState& one) {
  // The tokens that are read in the time of a copy, if the state has one byte for each parameter (docs/lab/models.md).
  constexpr int64_t kTokensPerCopy = 256;
  if (options.least_saved > 0) return {options.least_saved, 0};
  const int64_t copy = kTokensPerCopy * one.bytes() / std::max<int64_t>(model.parameter_count(), 1);
  return {model.device().is_cpu() ? 8 : 256, copy};
}

constexpr int64_t kParallelTokensCpu = 4096, kParallelTokensGpu = 32768;

// A GPU takes about as long for a few sequences as for hundreds. The memory of their states bounds their number. `one`: of one sequence.
int64_t default_batch(torch::Device device, const ModelState& one) {
  constexpr int64_t kMostStateBytes = int64_t{4} << 30, kLeast = 64, kMost = 256;
  if (device.is_cpu()) return 8;
  return one.grows() ? kLeast : std::clamp(kMostStateBytes / std::max<int64_t>(one.bytes(), 1), kLeast, kMost);
}

// The prefixes that the requests' contexts share. Without costs, nothing is shared.
template <class Requests>
PrefixTree shared_contexts(const Requests& requests, const std::vector<std::span<const int64_t>>& sequences,
                           const std::optional<SharingCosts>& costs) {
  if (!costs) {
    PrefixTree tree;
    tree.root_leaves.resize(sequences.size());
    std::iota(tree.root_leaves.begin(), tree.root_leaves.end(), size_t{0});
    return tree;
  }
  std::vector<int64_t> lengths;
  for (const auto& request : requests) lengths.push_back(static_cast<int64_t>(request.context.size()));
  return share_prefixes(sequences, lengths, *costs);
}

// Sends the sequences of a prefix tree through an engine: first the prefixes without a parent, then from each prefix's state those that
// continue it. The children of the prefix that was read last come first, so that few states are kept at a time.
class ForkedRun {
 public:
  ForkedRun(Engine& engine, std::vector<std::span<const int64_t>> sequences, PrefixTree tree)
      : engine_(engine), sequences_(std::move(sequences)), tree_(std::move(tree)) {
    for (const size_t node : tree_.root_nodes) pending_.push_back({true, node, nullptr});
    for (const size_t leaf : tree_.root_leaves) pending_.push_back({false, leaf, nullptr});
    // The longest first, from the end: short sequences then fill the slots while the last long ones are read.
    std::stable_sort(pending_.begin(), pending_.end(), [this](const Item& a, const Item& b) { return length(a) < length(b); });
  }
  virtual ~ForkedRun() = default;
  ForkedRun(const ForkedRun&) = delete;
  ForkedRun& operator=(const ForkedRun&) = delete;

  bool done() const { return pending_.empty() && prefixes_.empty() && active_leaves_ == 0; }
  int64_t tokens_done() const { return tokens_done_; }

  void advance() {
    while (!pending_.empty() && static_cast<int64_t>(prefixes_.size()) + active_leaves_ < 2 * engine_.slots()) {
      const Item item = std::move(pending_.back());
      pending_.pop_back();
      add(item);
    }
    step();
    for (auto entry = prefixes_.begin(); entry != prefixes_.end();) {
      const auto [sequence, node] = *entry;
      if (engine_.finish(sequence) == Finish::none) {
        ++entry;
        continue;
      }
      continue_from(tree_.nodes[node], std::make_shared<const SequenceState>(engine_.take_state(sequence)));
      engine_.remove(sequence);
      entry = prefixes_.erase(entry);
    }
  }

 protected:
  // Adds sequence `leaf` to the engine; `state` is that of a prefix, or null.
  virtual void add_leaf(size_t leaf, const SequenceState* state) = 0;
  // One step of the engine. Calls leaf_done() for each leaf that has ended.
  virtual void step() = 0;

  void leaf_done(size_t leaf) {
    tokens_done_ += static_cast<int64_t>(sequences_[leaf].size());
    --active_leaves_;
  }
  // The state with the tokens of the sequence instead of the prefix.
  static SequenceState continued(const SequenceState& state, std::span<const int64_t> tokens) {
    return {{tokens.begin(), tokens.end()}, state.state, state.cells};
  }

  Engine& engine_;
  std::vector<std::span<const int64_t>> sequences_;

 private:
  struct Item {
    bool is_prefix;
    size_t index;
    std::shared_ptr<const SequenceState> state;
  };

  int64_t length(const Item& item) const {
    return item.is_prefix ? tree_.nodes[item.index].length : static_cast<int64_t>(sequences_[item.index].size());
  }

  void add(const Item& item) {
    if (!item.is_prefix) {
      add_leaf(item.index, item.state.get());
      ++active_leaves_;
      return;
    }
    const PrefixTree::Node& node = tree_.nodes[item.index];
    const std::span<const int64_t> prefix = sequences_[node.example].first(static_cast<size_t>(node.length));
    const SequenceOptions options{.max_tokens = 0, .keep_state = true};
    const int64_t sequence = item.state ? engine_.add(continued(*item.state, prefix), options)
                                        : engine_.add(std::vector<int64_t>(prefix.begin(), prefix.end()), options);
    prefixes_.emplace(sequence, item.index);
  }

  void continue_from(const PrefixTree::Node& node, const std::shared_ptr<const SequenceState>& state) {
    for (const size_t child : node.nodes) pending_.push_back({true, child, state});
    for (const size_t leaf : node.leaves) pending_.push_back({false, leaf, state});
  }

  PrefixTree tree_;
  std::vector<Item> pending_;           // the last one is next
  std::map<int64_t, size_t> prefixes_;  // the engine's number of a prefix -> its node
  int64_t active_leaves_ = 0, tokens_done_ = 0;
};

std::vector<int64_t> joined(const ScoreRequest& request) {
  std::vector<int64_t> ids = request.context;
  ids.insert(ids.end(), request.continuation.begin(), request.continuation.end());
  return ids;
}

double sum_of(const std::vector<float>& values) { return std::accumulate(values.begin(), values.end(), 0.0); }

class ScoringRun final : public ForkedRun {
 public:
  // Writes scores[i] of each request i that is a leaf of the tree.
  ScoringRun(Engine& engine, std::span<const ScoreRequest> requests, std::vector<std::span<const int64_t>> sequences, PrefixTree tree,
             std::vector<ContinuationScore>& scores)
      : ForkedRun(engine, std::move(sequences), std::move(tree)), scores_(scores), requests_(requests) {}

 private:
  void add_leaf(size_t leaf, const SequenceState* state) override {
    const SequenceOptions options{
        .max_tokens = 0, .scores = true, .first_scored = static_cast<int64_t>(requests_[leaf].context.size()), .greedy = true};
    const std::span<const int64_t> tokens = sequences_[leaf];
    leaves_.emplace(state != nullptr ? engine_.add(continued(*state, tokens), options)
                                     : engine_.add(std::vector<int64_t>(tokens.begin(), tokens.end()), options),
                    leaf);
  }

  void step() override {
    for (const Engine::Output& output : engine_.step()) {
      const auto found = leaves_.find(output.sequence);
      if (found == leaves_.end()) continue;
      ContinuationScore& score = scores_[found->second];
      score.log_probabilities = engine_.scores(output.sequence);
      const std::vector<uint8_t>& greedy = engine_.greedy(output.sequence);
      score.greedy = std::all_of(greedy.begin(), greedy.end(), [](uint8_t each) { return each != 0; });
      engine_.remove(output.sequence);
      leaf_done(found->second);
      leaves_.erase(found);
    }
  }

  std::vector<ContinuationScore>& scores_;
  std::span<const ScoreRequest> requests_;
  std::map<int64_t, size_t> leaves_;  // the engine's number of a sequence -> its request
};

class GenerationRun final : public ForkedRun {
 public:
  GenerationRun(Engine& engine, const Tokenizer& tokenizer, std::span<const GenerationRequest> requests,
                const std::optional<SharingCosts>& costs, const std::string& model)
      : ForkedRun(engine, contexts_of(requests), shared_contexts(requests, contexts_of(requests), costs)),
        texts(requests.size()),
        generator_(engine, tokenizer),
        requests_(requests),
        model_(model) {}

  std::vector<std::string> texts;  // one for each request

 private:
  static std::vector<std::span<const int64_t>> contexts_of(std::span<const GenerationRequest> requests) {
    std::vector<std::span<const int64_t>> contexts;
    for (const GenerationRequest& request : requests) contexts.emplace_back(request.context);
    return contexts;
  }

  void add_leaf(size_t leaf, const SequenceState* state) override {
    const GenerationRequest& request = requests_[leaf];
    TextRequest text;
    text.options = {.sampling = {0}, .max_tokens = request.max_tokens};
    text.stops = request.stops;
    if (state != nullptr)
      text.state = continued(*state, request.context);
    else
      text.ids = request.context;
    leaves_.emplace(generator_.add(std::move(text)), leaf);
  }

  void step() override {
    generator_.step({}, [this](int64_t sequence, GeneratedText text) {
      const auto found = leaves_.find(sequence);
      if (text.finish_reason == "not_finite") throw Error(model_ + ": a token's probability is not a number; the weights may be damaged");
      texts[found->second] = std::move(text.text);
      engine_.remove(sequence);
      leaf_done(found->second);
      leaves_.erase(found);
    });
  }

  TextGenerator generator_;
  std::span<const GenerationRequest> requests_;
  const std::string& model_;
  std::map<int64_t, size_t> leaves_;  // as in ScoringRun
};

}  // namespace

Scorer::Scorer(LanguageModel& model, const Tokenizer& tokenizer, const ScorerOptions& options)
    : model_(model), tokenizer_(tokenizer), options_(options) {
  try {
    const ModelState one = model_.make_state(1);
    if (options_.fork) sharing_ = sharing_costs(options_, model_, one);
  } catch (const Error& error) {
    recurrent_ = false;
    no_state_ = error.what();
    log_info(options_.model + " has no recurrent form: requests are scored by the parallel form, and share no prefixes");
  }
}

Scorer::~Scorer() = default;

std::unique_ptr<Engine> Scorer::make_engine(Steps steps) const {
  const bool gpu = model_.device().is_cuda();
  const ModelState one = model_.make_state(1);
  EngineOptions engine{.slots = options_.batch > 0 ? options_.batch : default_batch(model_.device(), one),
                       .prefill_tokens = gpu ? 32768 : 0,
                       .joint_states = true,  // a prefix's state is dropped soon, when the sequences that continue it have been added
                       .padded_columns = options_.padded_columns,
                       .decode = {.steps = steps, .invariant = options_.invariant}};
  if (options_.invariant && gpu && one.grows()) engine.cache_tokens = engine.slots * (options_.max_length + 1);
  return std::make_unique<Engine>(model_, engine);
}

// Returns false if `progress` asked to stop. The engine is dropped then, because it still has sequences.
template <class Run>
bool Scorer::run(Run& run, std::unique_ptr<Engine>& engine, const Progress& progress) {
  const int64_t before = engine->tokens_read();
  try {
    while (!run.done()) {
      run.advance();
      if (!progress || progress(run.tokens_done())) continue;
      engine.reset();
      return false;
    }
  } catch (...) {
    engine.reset();
    throw;
  }
  tokens_read_ += engine->tokens_read() - before;
  return true;
}

ContinuationScore Scorer::checked(ContinuationScore score, size_t wanted) const {
  BASED_ASSERT(score.log_probabilities.size() == wanted);
  score.log_likelihood = sum_of(score.log_probabilities);
  if (!std::isfinite(score.log_likelihood))
    throw Error(options_.model + ": a token's probability is not a number; the weights may be damaged, or the training diverged");
  return score;
}

std::vector<ContinuationScore> Scorer::score(std::span<const ScoreRequest> requests, const Progress& progress) {
  std::vector<std::vector<int64_t>> sequences;
  int64_t tokens = 0;
  for (const ScoreRequest& request : requests) {
    if (request.context.empty() || request.continuation.empty())
      throw Error("a scored request needs at least one token of context and one of continuation");
    sequences.push_back(joined(request));
    require_positions(model_.config(), static_cast<int64_t>(sequences.back().size()) - 1, options_.model + ": a request");
    require_ids(model_.config(), sequences.back(), options_.model + ": a request");
    tokens += static_cast<int64_t>(sequences.back().size()) - 1;
  }
  if (requests.empty()) return {};
  const std::vector<std::span<const int64_t>> spans(sequences.begin(), sequences.end());
  PrefixTree tree = shared_contexts(requests, spans, sharing_);
  std::vector<ContinuationScore> scores(requests.size());
  int64_t tokens_alone = 0;                  // the tokens of requests that share nothing
  if (!recurrent_ || !options_.invariant) {  // such a request needs no state
    const std::optional<int64_t> read = score_in_parallel(requests, std::exchange(tree.root_leaves, {}), scores, progress);
    if (!read) return {};
    tokens_alone = *read;
  }
  if (!tree.root_nodes.empty() || !tree.root_leaves.empty()) {
    if (!scoring_) scoring_ = make_engine(Steps::plain);
    ScoringRun scoring(*scoring_, requests, spans, std::move(tree), scores);
    if (!run(scoring, scoring_, [&](int64_t done) { return !progress || progress(tokens_alone + done); })) return {};
  }
  tokens_ += tokens, tokens_read_ += tokens_alone;
  for (size_t i = 0; i < requests.size(); ++i) scores[i] = checked(std::move(scores[i]), requests[i].continuation.size());
  return scores;
}

std::vector<std::string> Scorer::generate(std::span<const GenerationRequest> requests, const Progress& progress) {
  if (!recurrent_) throw Error(options_.model + " cannot generate: " + no_state_);
  int64_t tokens = 0;
  for (const GenerationRequest& request : requests) {
    if (request.context.empty()) throw Error("a generation needs at least one token of context");
    tokens += static_cast<int64_t>(request.context.size()) - 1;
  }
  if (requests.empty()) return {};
  if (!generating_) generating_ = make_engine(Steps::fused);
  GenerationRun generation(*generating_, tokenizer_, requests, sharing_, options_.model);
  if (!run(generation, generating_, progress)) return {};
  tokens_ += tokens;
  return std::move(generation.texts);
}

// Reads packed rows in batches of bounded size, sorted by length; invariant: each request by itself.
std::optional<int64_t> Scorer::score_in_parallel(std::span<const ScoreRequest> requests, std::vector<size_t> order,
                                                 std::vector<ContinuationScore>& scores, const Progress& progress) {
  const torch::InferenceMode inference;
  const auto device = [this](const std::vector<int64_t>& values) {
    return runtime::to_device(torch::tensor(values, torch::kInt64), model_.device());
  };
  const auto length = [&](size_t i) { return requests[i].context.size() + requests[i].continuation.size() - 1; };
  std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) { return length(a) > length(b); });
  const auto most = static_cast<size_t>(model_.device().is_cuda() ? kParallelTokensGpu : kParallelTokensCpu);
  const size_t most_rows = options_.invariant ? 1 : options_.batch > 0 ? static_cast<size_t>(options_.batch) : order.size();
  int64_t done = 0;
  for (size_t next = 0; next < order.size();) {
    std::vector<int64_t> ids, starts{0}, rows, targets;
    const size_t first = next;
    for (; next < order.size() && next - first < most_rows && (next == first || ids.size() + length(order[next]) <= most); ++next) {
      const ScoreRequest& request = requests[order[next]];
      std::vector<int64_t> tokens = joined(request);
      for (size_t i = request.context.size(); i < tokens.size(); ++i)
        rows.push_back(static_cast<int64_t>(ids.size() + i) - 1), targets.push_back(tokens[i]);
      ids.insert(ids.end(), tokens.begin(), tokens.end() - 1);
      starts.push_back(static_cast<int64_t>(ids.size()));
    }
    const auto size = static_cast<int64_t>(ids.size());
    const Tensor hidden = model_.forward(device(ids), Sequences::packed(starts, size, model_.device())).index_select(0, device(rows));
    const Tensor wanted = device(targets);
    const Tensor nats = model_.token_log_probabilities(hidden, wanted, options_.padded_columns).to(torch::kCPU, torch::kFloat);
    const Tensor hits = model_.most_likely(hidden, options_.padded_columns).eq(wanted).to(torch::kCPU, torch::kByte);
    const float* value = nats.const_data_ptr<float>();
    const uint8_t* hit = hits.const_data_ptr<uint8_t>();
    for (size_t i = first; i < next; ++i) {
      const size_t count = requests[order[i]].continuation.size();
      ContinuationScore& score = scores[order[i]];
      score.log_probabilities.assign(value, value + count);
      score.greedy = std::all_of(hit, hit + count, [](uint8_t each) { return each != 0; });
      value += count, hit += count;
    }
    done += size;
    if (progress && !progress(done)) return std::nullopt;
  }
  return done;
}

}  // namespace based
