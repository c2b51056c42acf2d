#include "based/serve/states/prefix_cache.h"

#include <algorithm>
#include <bit>
#include <future>
#include <map>
#include <mutex>
#include <set>
#include <utility>
#include <vector>

#include "based/core/files.h"
#include "based/core/folders.h"
#include "based/core/json.h"
#include "based/core/log.h"
#include "based/core/temporaries.h"
#include "based/core/text.h"
#include "based/generate/cells.h"
#include "based/serve/endpoints/task_queue.h"
#include "based/serve/protocol/identifiers.h"

namespace based {
namespace {

using Tier = PrefixIndex::Tier;
using ReadState = PrefixCache::ReadState;
// A CPU reads so many tokens of a prompt in 50 times the time of a state. A state's time hardly depends on the model's size, a token's is
// proportional to it. Measured with `tools/serve-load --cold` for models of 28,640 and 2,096,064 parameters.
constexpr int64_t kParameterTokens = int64_t{1} << 32, kLeastInterval = 128, kMostInterval = 8192;
// A state at the end of a prompt also costs a step of one token, which takes as long as 10 to 12 tokens of a prompt: 2 % of 512 tokens.
constexpr int64_t kLeastComputed = 512, kTokensOfStep = 10;
// A state after generated tokens only costs its copy: a quarter of one at which reading is interrupted.
constexpr int64_t kEndsPerInterval = 4;
constexpr int64_t kMostIntervals = 16;     // states at regular intervals for one prompt; longer prompts have longer intervals
constexpr int64_t kMostPendingWrites = 8;  // evicted entries that wait to be written; further ones are dropped

int64_t memory_of(const SequenceState& state) { return state.state.bytes() + static_cast<int64_t>(state.ids.size() * sizeof(int64_t)); }

int64_t memory_of(const PromptScores* scores) {
  if (scores == nullptr) return 0;
  int64_t bytes = 0;
  for (const TokenScore& score : scores->scores)
    bytes += static_cast<int64_t>(sizeof(TokenScore) + score.top.size() * sizeof(score.top.front()));
  return bytes;
}

int64_t default_interval(const LanguageModel& model) {
  if (model.device().is_cuda()) return 0;
  const int64_t tokens = kParameterTokens / std::max<int64_t>(1, model.parameter_count());
  return std::clamp(static_cast<int64_t>(std::bit_floor(static_cast<uint64_t>(tokens))), kLeastInterval, kMostInterval);
}

// Whether `known` has all scores of `wanted`.
bool covers(const PromptScores* known, const PromptScores& wanted) {
  return known != nullptr && known->first <= wanted.first && known->top_log_probabilities >= wanted.top_log_probabilities;
}

}  // namespace

void check_prefix_cache_options(const PrefixCacheOptions& options) {
  const auto check = [](int64_t value, int64_t least, const char* name) {
    if (value < least)
      throw UsageError(std::string("prefix cache: ") + name + " must be at least " + std::to_string(least) + ", got " +
                       std::to_string(value));
  };
  check(options.memory_bytes, 0, "memory_bytes");
  check(options.disk_bytes, 0, "disk_bytes");
  check(options.recorded_tokens, 1, "recorded_tokens");
  check(options.interval, -1, "interval");
  check(options.computed_tokens, -1, "computed_tokens");
  check(options.least_tokens, 1, "least_tokens");
  check(options.ends, -1, "ends");
  if (options.ends > 1) throw UsageError("prefix cache: ends must be -1, 0 or 1, got " + std::to_string(options.ends));
}

// An entry on disk is the state file NAME.state and the table NAME.json with its owner and token ids, which is written after the state file
// and read at the start.
class PrefixCache::Impl {
 public:
  Impl(const LanguageModel& model, std::string model_hash, const PrefixCacheOptions& options, std::string folder, std::string cells,
       ReadState read)
      : model_(model),
        model_hash_(std::move(model_hash)),
        read_(std::move(read)),
        options_(options),
        folder_(std::move(folder)),
        cells_(std::move(cells)),
        cell_(cells_.empty() ? 1 : cell_tokens(model.device().type())),
        index_(options.recorded_tokens) {
    check_prefix_cache_options(options_);
    if (!read_) read_ = [this](const std::string& path) { return load_sequence(path, model_, model_hash_); };
    const int64_t interval = default_interval(model);
    if (options_.interval < 0) options_.interval = interval;
    if (options_.computed_tokens < 0) options_.computed_tokens = std::max(interval, kLeastComputed);
    if (options_.ends < 0) options_.ends = model.device().is_cuda() ? 0 : 1;
    end_tokens_ = std::min(options_.computed_tokens, interval / kEndsPerInterval);
    if (!folder_.empty()) read_folder();
  }

  std::optional<PrefixPlan> plan(const PrefixRequest& request, PrefixSource::Ready ready) {
    const std::lock_guard lock(mutex_);
    if (options_.memory_bytes == 0 || request.ids.empty()) return PrefixPlan();
    const PrefixIndex::Match match = find(request);
    if (match.entry < 0 || entries_.at(match.entry).state) return plan_from(request, match);
    std::vector<int64_t> ids(request.ids.begin(), request.ids.end());
    reader_.post([this, request = PrefixRequest(request), ids = std::move(ids), ready = std::move(ready)]() mutable {
      request.ids = ids;
      PrefixPlan plan;
      try {
        plan = read_plan(request);
      } catch (const std::exception& error) {
        log_error(std::string("prefix cache: ") + error.what());
      }
      ready(std::move(plan));
    });
    return std::nullopt;
  }

  void insert(const std::string& owner, const std::shared_ptr<const SequenceState>& state,
              const std::shared_ptr<const PromptScores>& scores) {
    if (!state || state->cells != (cells_.empty() ? state->cells : cells_)) return;
    const auto seen = state->seen();
    const std::lock_guard lock(mutex_);
    if (seen < options_.least_tokens || seen >= static_cast<int64_t>(state->ids.size())) return;
    // The token after those that were seen makes the sequence a valid one, and has the last one of the scores.
    auto kept = std::make_shared<const SequenceState>(
        SequenceState{{state->ids.begin(), state->ids.begin() + seen + 1}, state->state, state->cells});
    const int64_t bytes = memory_of(*kept) + memory_of(scores.get());
    if (bytes > options_.memory_bytes) return;
    const std::span<const int64_t> prefix = std::span(kept->ids).first(static_cast<size_t>(seen));
    const bool interval = options_.interval > 0 && seen % options_.interval == 0;
    const auto put = [&] {
      const PrefixIndex::Put made = index_.put(key_of(owner), prefix, bytes, Tier::memory, interval);
      drop_all(made.forgotten);
      return made;
    };
    PrefixIndex::Put made = put();
    if (!made.is_new && made.entry >= 0 && scores && !covers(entries_.at(made.entry).scores.get(), *scores)) {
      drop(made.entry);
      made = put();
    }
    if (made.is_new) {
      entries_[made.entry] = {key_of(owner), std::move(kept), scores, ""};
      ++metrics_.snapshots;
    }
    keep_budgets();
  }

  PrefixCacheMetrics metrics() const {
    const std::lock_guard lock(mutex_);
    PrefixCacheMetrics metrics = metrics_;
    metrics.entries = index_.entries();
    metrics.memory_bytes = index_.bytes(Tier::memory);
    metrics.disk_bytes = index_.bytes(Tier::disk);
    return metrics;
  }

  void flush() {
    for (TaskQueue* const queue : {&reader_, &writer_}) {  // the reader may post to the writer
      std::promise<void> done;
      queue->post([&done] { done.set_value(); });
      done.get_future().wait();
    }
  }

  // Writes the entries that are only in memory, the most valuable ones first.
  void save() {
    flush();
    if (folder_.empty()) return;
    std::vector<int64_t> entries;
    int64_t left = 0;
    {
      const std::lock_guard lock(mutex_);
      entries = index_.ranked(Tier::memory);
      left = options_.disk_bytes - index_.bytes(Tier::disk);
    }
    for (auto entry = entries.rbegin(); entry != entries.rend(); ++entry) {
      left -= index_.entry_bytes(*entry);
      if (left >= 0 && entries_.at(*entry).file.empty()) write(*entry);
      if (left < 0 && !entries_.at(*entry).file.empty()) remove_files(entries_.at(*entry).file);
    }
  }

 private:
  struct Entry {
    std::string key;                             // the owner's tree in the index
    std::shared_ptr<const SequenceState> state;  // null: on disk only
    std::shared_ptr<const PromptScores> scores;  // null: none, or on disk, where they are not stored
    std::string file;                            // NAME; "": not on disk
  };

  const std::string& key_of(const std::string& owner) const {
    static const std::string all;
    return options_.shared ? all : owner;
  }

  // The longest entry from which the prompt can be read.
  PrefixIndex::Match find(const PrefixRequest& request) const {
    const std::string& key = key_of(request.owner);
    PrefixIndex::Match match = index_.match(key, request.ids, static_cast<int64_t>(request.ids.size()) - 1);
    while (match.entry >= 0 && !has_scores(entries_.at(match.entry), match.entry_tokens, request))
      match = index_.match(key, request.ids, match.entry_tokens - 1);
    return match;
  }

  static bool needs_scores(const PrefixRequest& request, int64_t seen) { return request.first_scored >= 0 && request.first_scored <= seen; }

  // Whether the entry has the scores that a prompt needs if it starts there. These include the score of the first unread token.
  static bool has_scores(const Entry& entry, int64_t seen, const PrefixRequest& request) {
    if (!needs_scores(request, seen)) return true;
    const auto last = static_cast<size_t>(seen);
    return entry.state && entry.scores && entry.scores->first <= request.first_scored &&
           entry.scores->top_log_probabilities >= request.top_log_probabilities && entry.state->ids[last] == request.ids[last];
  }

  // The plan for an entry in memory, or for none.
  PrefixPlan plan_from(const PrefixRequest& request, const PrefixIndex::Match& match) {
    PrefixPlan plan;
    if (match.entry >= 0) {
      const Entry& entry = entries_.at(match.entry);
      plan.state = entry.state;
      if (needs_scores(request, match.entry_tokens)) plan.scores = with_top(entry.scores, request.top_log_probabilities);
      if (index_.tier(match.entry) == Tier::disk) index_.move(match.entry, Tier::memory);
      index_.use(match.entry);
    }
    ++(match.entry >= 0 ? metrics_.hits : metrics_.misses);
    metrics_.prompt_tokens += static_cast<int64_t>(request.ids.size()) - 1;
    metrics_.tokens_saved += match.entry_tokens;
    plan.cuts = cuts(request, match);
    plan.keep_end = keeps_end(request, match);
    drop_all(index_.record(key_of(request.owner), request.ids));
    keep_budgets();
    return plan;
  }

  // The scores with at most `top` most likely tokens at each position.
  static std::shared_ptr<const PromptScores> with_top(const std::shared_ptr<const PromptScores>& scores, int64_t top) {
    if (scores->top_log_probabilities == top) return scores;
    PromptScores few = *scores;
    few.top_log_probabilities = top;
    for (TokenScore& score : few.scores) score.top.resize(std::min(score.top.size(), static_cast<size_t>(top)));
    return std::make_shared<const PromptScores>(std::move(few));
  }

  // Whether the state after the generated tokens is kept: if the request is not cold, or if it computes enough.
  bool keeps_end(const PrefixRequest& request, const PrefixIndex::Match& match) const {
    const int64_t tokens = static_cast<int64_t>(request.ids.size()) + kTokensOfStep * request.max_tokens;
    return options_.ends != 0 && (match.common >= options_.least_tokens || tokens >= end_tokens_);
  }

  // The numbers of tokens after which this prompt's states are taken.
  std::vector<int64_t> cuts(const PrefixRequest& request, const PrefixIndex::Match& match) const {
    const int64_t last = static_cast<int64_t>(request.ids.size()) - 1;
    std::set<int64_t> wanted;
    const auto add = [&](int64_t tokens) {
      tokens = std::min(tokens, last);
      tokens -= tokens % cell_;
      if (tokens - match.entry_tokens >= options_.least_tokens) wanted.insert(tokens);
    };
    // A state is of use for scores only if the next prompt also has the token after the state's.
    const int64_t after = request.first_scored >= 0 ? 1 : 0;
    add(std::min(match.common, last) - after);
    if (last - match.entry_tokens >= options_.computed_tokens) {
      add(last - after);
      for (const int64_t tokens : request.boundaries) add(tokens - after);
      add_intervals(match.entry_tokens, last, add);
    }
    return {wanted.begin(), wanted.end()};
  }

  // Calls add(tokens) at regular intervals between the tokens `begin` and `last`. The state at the prompt's end makes one that is closer to
  // it than half an interval useless.
  template <class Add>
  void add_intervals(int64_t begin, int64_t last, const Add& add) const {
    int64_t interval = options_.interval;
    if (interval == 0) return;
    while ((last - begin) / interval > kMostIntervals) interval *= 2;
    for (int64_t tokens = (begin / interval + 1) * interval; tokens + interval / 2 <= last; tokens += interval) add(tokens);
  }

  // Runs on the reader's thread: reads the state of the longest entry and plans with it. An entry whose file cannot be used is dropped, and
  // the next one is tried.
  PrefixPlan read_plan(const PrefixRequest& request) {
    std::unique_lock lock(mutex_);
    while (true) {
      const PrefixIndex::Match match = find(request);
      if (match.entry < 0 || entries_.at(match.entry).state) return plan_from(request, match);
      const std::string file = entries_.at(match.entry).file;
      lock.unlock();
      std::shared_ptr<const SequenceState> state;
      std::string fault;
      try {
        state = std::make_shared<const SequenceState>(read_(state_path(file)));
      } catch (const std::exception& error) {
        fault = error.what();
      }
      lock.lock();
      const auto found = entries_.find(match.entry);
      if (found == entries_.end() || found->second.state) continue;  // dropped or inserted in the meantime
      if (state) {
        found->second.state = std::move(state);
        ++metrics_.disk_reads;
        if (const PrefixIndex::Match again = find(request); again.entry == match.entry) return plan_from(request, again);
      } else {
        log_warning("prefix cache: entry dropped: " + fault);
        ++metrics_.damaged;
        drop(match.entry);
      }
    }
  }

  void drop_all(const std::vector<int64_t>& ids) {
    for (const int64_t id : ids) forget(id);
  }

  void drop(int64_t id) {
    index_.erase(id);
    forget(id);
  }

  // Removes the files and the state of an entry that the index has dropped.
  void forget(int64_t id) {
    if (const std::string file = entries_.at(id).file; !file.empty()) writer_.post([this, file] { remove_files(file); });
    entries_.erase(id);
    ++metrics_.evictions;
  }

  void keep_budgets() {
    while (index_.bytes(Tier::memory) > options_.memory_bytes) evict(*index_.victim(Tier::memory));
    while (index_.bytes(Tier::disk) > options_.disk_bytes) drop(*index_.victim(Tier::disk));
  }

  // Moves an entry from memory to disk, or drops it.
  void evict(int64_t id) {
    Entry& entry = entries_.at(id);
    const bool on_disk = !entry.file.empty();
    const bool fits = !folder_.empty() && index_.entry_bytes(id) <= options_.disk_bytes;
    if (!fits || (!on_disk && pending_writes_ >= kMostPendingWrites)) return drop(id);
    index_.move(id, Tier::disk);
    entry.scores.reset();
    if (on_disk) {
      entry.state.reset();
      return;
    }
    ++pending_writes_;
    writer_.post([this, id] { write_evicted(id); });
  }

  void write_evicted(int64_t id) {
    write(id);
    const std::lock_guard lock(mutex_);
    --pending_writes_;
    const auto entry = entries_.find(id);
    if (entry == entries_.end() || index_.tier(id) == Tier::memory) return;  // dropped, or in use again
    if (entry->second.file.empty()) return drop(id);                         // the disk may be full
    entry->second.state.reset();
  }

  // Writes the files of an entry in memory. Does nothing if it was dropped or written in the meantime.
  void write(int64_t id) {
    Entry entry;
    {
      const std::lock_guard lock(mutex_);
      if (const auto found = entries_.find(id); found != entries_.end()) entry = found->second;
    }
    if (!entry.state || !entry.file.empty()) return;
    const std::string name = random_hex(16);
    const auto bytes = memory_of(*entry.state);
    try {
      save_sequence(state_path(name), *entry.state, model_hash_);
      const Json about = {
          {"model", model_hash_}, {"cells", entry.state->cells}, {"owner", entry.key}, {"bytes", bytes}, {"ids", entry.state->ids}};
      write_file_atomic(path_in(folder_, name + ".json"), dump_json(about));
    } catch (const Error& error) {
      log_warning(std::string("prefix cache: entry not kept: ") + error.what());
      remove_files(name);
      return;
    }
    const std::lock_guard lock(mutex_);
    const auto found = entries_.find(id);
    if (found == entries_.end()) return remove_files(name);
    found->second.file = name;
    ++metrics_.disk_writes;
  }

  std::string state_path(const std::string& name) const { return path_in(folder_, name + ".state"); }

  void remove_files(const std::string& name) const {
    try {
      remove_file(path_in(folder_, name + ".json"));
      remove_file(state_path(name));
    } catch (const Error& error) {
      log_warning(std::string("prefix cache: ") + error.what());
    }
  }

  void read_folder() {
    remove_stale_temporaries(folder_);
    const std::vector<std::string> names = names_in(folder_);
    const std::set<std::string> all(names.begin(), names.end());
    int64_t other = 0;
    for (const std::string& file : names) {
      if (const std::string name = file.substr(0, file.rfind('.')); file.ends_with(".json") && all.contains(name + ".state")) {
        if (!read_entry(name)) ++other, remove_files(name);
      } else if ((file.ends_with(".state") && !all.contains(name + ".json")) || file.ends_with(".json")) {
        remove_files(name);  // a killed process left one of the two
      }
    }
    if (other > 0)
      log_warning(folder_ + ": removed " + std::to_string(other) + " cached states that are damaged or of another model or setting");
    keep_budgets();
  }

  // False if the entry cannot be used.
  bool read_entry(const std::string& name) {
    try {
      const std::string path = path_in(folder_, name + ".json");
      const Json about = parse_json(read_regular_file(path), path);
      if (about.at("model") != model_hash_ || (!cells_.empty() && about.at("cells") != cells_)) return false;
      const auto ids = about.at("ids").get<std::vector<int64_t>>();
      const auto bytes = about.at("bytes").get<int64_t>();
      const auto key = about.at("owner").get<std::string>();
      if (ids.size() < 2 || bytes < 0) return false;
      const PrefixIndex::Put put = index_.put(key, std::span(ids).first(ids.size() - 1), bytes, Tier::disk);
      drop_all(put.forgotten);
      if (!put.is_new) return false;
      entries_[put.entry] = {key, nullptr, nullptr, name};
      return true;
    } catch (const Error& error) {
      log_warning(error.what());
    } catch (const Json::exception& error) {
      log_warning(path_in(folder_, name + ".json") + ": " + error.what());
    }
    ++metrics_.damaged;
    return false;
  }

  const LanguageModel& model_;
  const std::string model_hash_;
  ReadState read_;
  PrefixCacheOptions options_;
  const std::string folder_, cells_;
  const int64_t cell_;      // states are taken at multiples of this many tokens
  int64_t end_tokens_ = 0;  // a cold request leaves a state at its end if it takes as long as reading so many tokens of a prompt
  mutable std::mutex mutex_;
  PrefixIndex index_;
  std::map<int64_t, Entry> entries_;  // by the index's number
  PrefixCacheMetrics metrics_;
  int64_t pending_writes_ = 0;
  // The last members: their tasks use the others, and the reader's also the writer.
  TaskQueue writer_{1};
  TaskQueue reader_{1};
};

PrefixCache::PrefixCache(const LanguageModel& model, std::string model_hash, const PrefixCacheOptions& options, std::string folder,
                         std::string cells, ReadState read)
    : impl_(std::make_unique<Impl>(model, std::move(model_hash), options, std::move(folder), std::move(cells), std::move(read))) {}

PrefixCache::~PrefixCache() { impl_->save(); }

std::optional<PrefixPlan> PrefixCache::plan(const PrefixRequest& request, Ready ready) { return impl_->plan(request, std::move(ready)); }

void PrefixCache::insert(const std::string& owner, std::shared_ptr<const SequenceState> state, std::shared_ptr<const PromptScores> scores) {
  impl_->insert(owner, state, scores);
}

PrefixCacheMetrics PrefixCache::metrics() const { return impl_->metrics(); }

void PrefixCache::flush() { impl_->flush(); }

}  // namespace based
