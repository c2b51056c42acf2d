// The options of a sequence that an engine continues, and its snapshot.
#pragma once
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "based/core/state_file.h"
#include "based/generate/sampler.h"
#include "based/models/language_model.h"

namespace based {

// Why a sequence has ended.
enum class Finish {
  none,        // it has not ended
  length,      // max_tokens
  stop,        // one of its stop tokens
  cache_full,  // its state grows, and the engine's cache has no room for another token
  positions,   // the model has no position for another token (max_positions)
  not_finite,  // its logits are not finite
};
const char* finish_name(Finish finish);  // "none", "length", …

inline constexpr int64_t kMostTopLogProbabilities = 20;
inline constexpr int64_t kMostDraftTokens = 7;  // that a step reads after a sequence's own token (generate/drafting.h)

struct TokenProbability {
  int64_t id = 0;
  float log_probability = 0;  // under the model's softmax: before the temperature, the penalties and all other sampling options
};

// Restricts the next token. It receives the tokens from SequenceOptions::first_generated on and returns the ids that may follow: bit w mod
// 64 of word w / 64 is set for token w, in (vocab_size + 63) / 64 words. The words must stay valid until the next call. The result must be
// a function of the tokens, because it may be asked for twice. If no bit is set, the sequence ends as at a stop token, without a token.
using AllowedTokens = std::function<std::span<const uint64_t>(std::span<const int64_t> generated)>;

struct SequenceOptions {
  SamplingOptions sampling = {};
  int64_t max_tokens = -1;                // new tokens; −1: no limit
  std::vector<int64_t> stop_tokens = {};  // the sequence ends with the first sampled one of these
  bool scores = false;                    // keep the log-probability of each token of the prompt but the first (Engine::scores)
  int64_t first_scored = 1;               // for `scores`: the index of the first token that is scored, at least 1
  bool greedy = false;                    // for `scores`: also keep whether each scored token is the most likely one (Engine::greedy)
  bool keep_state = false;                // the state after the last token stays with the engine until the sequence is removed
  // For each sampled token, and with `scores` for each scored one, also keep this many most likely tokens (Engine::Output::top,
  // Engine::top_scores), 0 to kMostTopLogProbabilities.
  int64_t top_log_probabilities = 0;
  // The index of the first token that counts as generated, for the presence and frequency penalties; −1: the number of tokens that the
  // sequence has when it is added. A sequence that continues another one's generation gives the length of that one's prompt, and then
  // samples the same tokens as without the break. Engine::extend() begins a new prompt: only tokens after it count.
  int64_t first_generated = -1;
  AllowedTokens allowed = {};  // empty: all tokens. The engine then waits for each token of the sequence before it launches the next step.
};

// The tokens, and a model's state after the first seen() of them: one slot in canonical form, on the model's device. The state
// has not read the other tokens, and never the last one.
struct SequenceState {
  std::vector<int64_t> ids;
  ModelState state;
  // describe_cells() of the engine that made the state at a cell's begin (generate/cells.h); empty for other states.
  std::string cells = {};

  int64_t seen() const { return state.position()[0].item<int64_t>(); }  // the number of tokens that the state has read
};

// Throws Error if the model's logits after the next token of the sequence are not finite: its state would be useless.
void require_finite_logits(LanguageModel& model, const SequenceState& sequence);

// Writes a state file: version, hash of the model, token ids, state, its cells, checksum. Engines on all devices read each other's files.
// Throws Error, and writes nothing, if the state is not finite.
void save_sequence(const std::string& path, const SequenceState& sequence, const std::string& model_hash);
// The bytes of that file, in memory. Errors name the state `name`.
std::string sequence_file_content(const SequenceState& sequence, const std::string& model_hash, const std::string& name);
// Throws Error naming the file if it is damaged, belongs to another model, does not fit this one's shapes and vocabulary, or is not finite.
SequenceState load_sequence(const std::string& path, const LanguageModel& model, const std::string& model_hash);
// As load_sequence, of a parsed state file (core/state_file.h) whose name in errors is `source`. Its model hash is not compared.
SequenceState sequence_of(const StateSnapshot& snapshot, const LanguageModel& model, const std::string& source);

}  // namespace based
