// States after the prefixes of earlier prompts, so that a prompt is read from the longest known prefix on.
//
// A state cannot be cut: it serves only prompts that begin with all tokens it has seen. The cache therefore plans where states are taken
// while a prompt is read. It remembers the tokens of earlier sequences, also where it has no states, and takes a state where a new prompt
// diverges from an earlier one. Prompts with this prefix from then on read exactly their own tail. It also takes states after the
// generated text, for continuations.
//
// Reading a prompt up to a state costs an additional step, and most prompts share nothing. A prompt that no other one is known to share
// therefore leaves states only if at least PrefixCacheOptions::computed_tokens of its tokens are computed, so that cold prompts lose
// about 2 %: at its end, for the same prompt again; and for the first prompt that diverges from it, at PrefixRequest::boundaries and at a
// regular interval. The latter are at most 16 for one prompt, so that longer prompts have longer intervals. For the same reason a cold
// request leaves a state after its generated text only if it takes as long as reading a quarter of the default interval. On a GPU the
// thread that steps all sequences launches a copy of each layer's tensors for a state, one after another, and all sequences wait.
//
// A prompt whose tokens are scored starts from a state only if the entry also has the scores of the tokens that are then not computed.
// Scores are kept in memory only.
//
// Entries of one owner are not visible to others unless PrefixCacheOptions::shared is set: the time until the first token tells whether a
// prompt's prefix is cached. An entry is never changed; sequences share its tensors. Entries beyond the memory budget are written to
// `folder` by a thread of the cache, or dropped if there is none; see PrefixIndex for the order. A state on disk is read by another thread
// of the cache when a prompt uses it.
//
// All functions may be called by any thread; the engine's thread calls plan() and insert(), which never wait for the disk.
#pragma once
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "based/core/config.h"
#include "based/generate/sequence.h"
#include "based/serve/service/prefix_source.h"
#include "based/serve/states/prefix_index.h"

namespace based {

struct PrefixCacheOptions {
  int64_t memory_bytes = int64_t{1} << 30;
  int64_t disk_bytes = int64_t{4} << 30;
  int64_t recorded_tokens = int64_t{1} << 22;
  int64_t interval = -1;
  int64_t computed_tokens = -1;
  int64_t least_tokens = 16;
  int64_t ends = -1;
  bool shared = false;

  template <class Visitor>
  void visit(Visitor&& field) {
    field("memory_bytes", memory_bytes, "bytes of cached states in the model's memory; 0: no cache");
    field("disk_bytes", disk_bytes, "bytes of cached states on disk, if the server has a state folder");
    field("recorded_tokens", recorded_tokens, "tokens of earlier sequences that are remembered to find common prefixes");
    field(
        "interval", interval,
        "keep states at multiples of this many tokens within a prompt; 0: none; -1: none on a GPU; on a CPU 128, more for models of fewer "
        "than 17 million parameters (2048 for two million), at most 8192");
    field("computed_tokens", computed_tokens,
          "keep a new prompt's states at intervals and at its end only if at least this many of its tokens are computed; -1: 512, on a CPU "
          "at least the default interval");
    field("least_tokens", least_tokens, "a state is kept only if it saves at least this many tokens");
    field(
        "ends", ends,
        "1: keep the states after generated texts, for requests that continue them; 0: do not; -1: on a CPU only, because a GPU waits for "
        "the host after each step of a text that has stop tokens and whose state is kept");
    field("shared", shared, "share cached prefixes between API keys; their owners can then discover each other's prompts by timing");
  }
};

// Throws UsageError for values out of range.
void check_prefix_cache_options(const PrefixCacheOptions& options);

struct PrefixCacheMetrics {
  int64_t entries = 0, memory_bytes = 0, disk_bytes = 0;  // now
  int64_t hits = 0, misses = 0;                           // prompts that started from an entry, and those that did not
  int64_t prompt_tokens = 0, tokens_saved = 0;            // all tokens of prompts; those read from entries instead of computed
  int64_t snapshots = 0;                                  // states that were added
  int64_t evictions = 0;                                  // entries that were dropped from both tiers
  int64_t disk_reads = 0, disk_writes = 0, damaged = 0;   // states read from disk and written; files that could not be used
};

class PrefixCache final : public PrefixSource {
 public:
  using ReadState = std::function<SequenceState(const std::string& path)>;

  // `model` must outlive this. `folder`: an existing folder that the caller has locked (FolderLock), or "" for no disk tier. `cells`:
  // describe_cells(model) for an invariant engine, otherwise "". Entries that an earlier process wrote for the same model are available
  // again. Files that cannot be used are removed with a warning. `read`: reads a state file; load_sequence() if empty. Throws UsageError
  // for options out of range.
  PrefixCache(const LanguageModel& model, std::string model_hash, const PrefixCacheOptions& options, std::string folder = "",
              std::string cells = "", ReadState read = {});
  // Writes the entries in memory to the folder, the most valuable ones first, as far as they fit into disk_bytes.
  ~PrefixCache() override;
  PrefixCache(const PrefixCache&) = delete;
  PrefixCache& operator=(const PrefixCache&) = delete;

  // Records the prompt, of at least one token. Its last token is never part of a state.
  std::optional<PrefixPlan> plan(const PrefixRequest& request, Ready ready) override;
  // Adds the state as the entry of the tokens that it has seen. No effect if these are fewer than least_tokens, if the state is larger than
  // the memory budget, or if it was not made in the cells of this cache.
  void insert(const std::string& owner, std::shared_ptr<const SequenceState> state,
              std::shared_ptr<const PromptScores> scores = nullptr) override;

  PrefixCacheMetrics metrics() const;
  void flush();  // waits until all states that are being read are in memory and all evicted entries are on disk

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace based
