// One sequence in an engine of one slot. The state has seen every token but the last one, so that a prompt, a restored state and tokens
// just generated are continued in the same way, by a step with the last token.
#pragma once
#include <functional>
#include <string>
#include <vector>

#include "based/generate/engine.h"

namespace based {

class Session {
 public:
  // An empty sequence. The engine always has one slot, whatever `engine` says. Throws UsageError for an engine with drafts.
  explicit Session(LanguageModel& model, EngineOptions engine = {});

  // Adds tokens. The parallel form reads all but the last one when the next token is sampled. Throws Error for an id outside the
  // vocabulary.
  void append(const std::vector<int64_t>& ids);
  // Reads all added tokens but the last one, in pieces; calls `progress` after each with the number of tokens read so far.
  void read(const std::function<void(int64_t tokens)>& progress = {});
  // Samples the next token and adds it to the sequence. Throws Error if the sequence is empty, if the logits are not finite, or if the
  // model's positions or the cache have no room for another token.
  int64_t next(const SamplingOptions& options);

  const std::vector<int64_t>& ids() const;
  int64_t state_bytes() const { return engine_.state_bytes() - engine_.begins_bytes(); }  // bytes of the state that save() writes

  // A state file (generate/sequence.h). save() throws Error, and writes nothing, if the state or the logits after it are not finite. load()
  // throws Error if the file is damaged or belongs to another model, and then leaves the session as it was.
  void save(const std::string& path, const std::string& model_hash);
  void load(const std::string& path, const std::string& model_hash);

 private:
  LanguageModel& model_;
  Engine engine_;
  int64_t sequence_ = -1;  // the engine's number; −1: no tokens have been added
};

}  // namespace based
