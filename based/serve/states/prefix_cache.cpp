#include "based/serve/states/prefix_cache.h"

#include <algorithm>
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
constexpr int64_t kIntervalCpu = 512;
constexpr int64_t kMostPendingWrites = 8;  // evicted entries that wait to be written; further ones are dropped

int64_t memory_of(const SequenceState& state) { return state.state.bytes() + static_cast<int64_t>(state.ids.size() * sizeof(int64_t)); }

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
  check(options.least_tokens, 1, "least_tokens");
}

// An entry on disk is the state file NAME.state and the table NAME.json with its owner and token ids, which is written after the state file
// and read at the start.
class PrefixCache::Impl {
 public:
  Impl(const LanguageModel& model, std::string model_hash, const PrefixCacheOptions& options, std::string folder, std::string cells)
      : model_(model),
        model_hash_(std::move(model_hash)),
        options_(options),
        folder_(std::move(folder)),
        cells_(std::move(cells)),
        cell_(cells_.empty() ? 1 : cell_tokens(model.device().type())),
        index_(options.recorded_tokens) {
    check_prefix_cache_options(options_);
    if (options_.interval < 0) options_.interval = model.device().is_cuda() ? 0 : kIntervalCpu;
    if (!folder_.empty()) read_folder();
  }

  PrefixPlan plan(const std::string& owner, std::span<const int64_t> ids) {
    const std::lock_guard lock(mutex_);
    PrefixPlan plan;
    if (options_.memory_bytes == 0 || ids.empty()) return plan;
    const std::string& key = key_of(owner);
    const auto most = static_cast<int64_t>(ids.size()) - 1;
    PrefixIndex::Match match = index_.match(key, ids, most);
    while (match.entry >= 0 && !(plan.state = state_of(match.entry))) match = index_.match(key, ids, most);
    if (match.entry >= 0) index_.use(match.entry);
    ++(match.entry >= 0 ? metrics_.hits : metrics_.misses);
    metrics_.prompt_tokens += most;
    metrics_.tokens_saved += match.entry_tokens;
    plan.cuts = cuts(match, most);
    plan.keep_end = options_.ends;
    drop_all(index_.record(key, ids));
    keep_budgets();
    return plan;
  }

  void insert(const std::string& owner, const std::shared_ptr<const SequenceState>& state) {
    if (!state || state->cells != (cells_.empty() ? state->cells : cells_)) return;
    const auto seen = state->seen();
    const std::lock_guard lock(mutex_);
    if (seen < options_.least_tokens || seen >= static_cast<int64_t>(state->ids.size())) return;
    // The token after those that were seen only makes the sequence a valid one.
    auto kept = std::make_shared<const SequenceState>(
        SequenceState{{state->ids.begin(), state->ids.begin() + seen + 1}, state->state, state->cells});
    const int64_t bytes = memory_of(*kept);
    if (bytes > options_.memory_bytes) return;
    const std::span<const int64_t> prefix = std::span(kept->ids).first(static_cast<size_t>(seen));
    const bool interval = options_.interval > 0 && seen % options_.interval == 0;
    const PrefixIndex::Put put = index_.put(key_of(owner), prefix, bytes, Tier::memory, interval);
    if (put.is_new) {
      entries_[put.entry] = {key_of(owner), std::move(kept), ""};
      ++metrics_.snapshots;
    }
    drop_all(put.forgotten);
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
    std::promise<void> done;
    writer_.post([&done] { done.set_value(); });
    done.get_future().wait();
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
    std::string file;                            // NAME; "": not on disk
  };

  const std::string& key_of(const std::string& owner) const {
    static const std::string all;
    return options_.shared ? all : owner;
  }

  // The numbers of tokens after which this prompt's states are taken. `most`: all tokens but the last one.
  std::vector<int64_t> cuts(const PrefixIndex::Match& match, int64_t most) const {
    std::set<int64_t> wanted;
    const auto add = [&](int64_t tokens) {
      tokens -= tokens % cell_;
      if (tokens - match.entry_tokens >= options_.least_tokens) wanted.insert(tokens);
    };
    add(std::min(match.common, most));
    add(most);
    if (options_.interval > 0)
      for (int64_t tokens = (match.entry_tokens / options_.interval + 1) * options_.interval; tokens < most; tokens += options_.interval)
        add(tokens);
    return {wanted.begin(), wanted.end()};
  }

  // The entry's state, from disk if it is there. If the file cannot be used, drops the entry and returns null.
  std::shared_ptr<const SequenceState> state_of(int64_t id) {
    Entry& entry = entries_.at(id);
    if (!entry.state) {
      try {
        entry.state = std::make_shared<const SequenceState>(load_sequence(state_path(entry.file), model_, model_hash_));
        ++metrics_.disk_reads;
      } catch (const Error& error) {
        log_warning(std::string("prefix cache: entry dropped: ") + error.what());
        ++metrics_.damaged;
        drop(id);
        return nullptr;
      }
    }
    if (index_.tier(id) == Tier::disk) index_.move(id, Tier::memory);
    return entry.state;
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
      entries_[put.entry] = {key, nullptr, name};
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
  PrefixCacheOptions options_;
  const std::string folder_, cells_;
  const int64_t cell_;  // states are taken at multiples of this many tokens
  mutable std::mutex mutex_;
  PrefixIndex index_;
  std::map<int64_t, Entry> entries_;  // by the index's number
  PrefixCacheMetrics metrics_;
  int64_t pending_writes_ = 0;
  TaskQueue writer_{1};  // the last member: its tasks use the others
};

PrefixCache::PrefixCache(const LanguageModel& model, std::string model_hash, const PrefixCacheOptions& options, std::string folder,
                         std::string cells)
    : impl_(std::make_unique<Impl>(model, std::move(model_hash), options, std::move(folder), std::move(cells))) {}

PrefixCache::~PrefixCache() { impl_->save(); }

PrefixPlan PrefixCache::plan(const std::string& owner, std::span<const int64_t> ids) { return impl_->plan(owner, ids); }

void PrefixCache::insert(const std::string& owner, std::shared_ptr<const SequenceState> state) { impl_->insert(owner, state); }

PrefixCacheMetrics PrefixCache::metrics() const { return impl_->metrics(); }

void PrefixCache::flush() { impl_->flush(); }

}  // namespace based
