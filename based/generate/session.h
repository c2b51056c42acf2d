// A view of one sequence of an engine, continued from a recurrent state. The state has seen every token but the last; so a
// prompt, a restored state and tokens just generated are all continued in the same way, by a step with the last token.
#pragma once
#include <functional>
#include <string>
#include <vector>

#include "based/generate/engine.h"

namespace based {

class Session {
 public:
  // An empty sequence. Of `engine`, one slot is made.
  explicit Session(LanguageModel& model, EngineOptions engine = {});

  // Adds tokens; all but the last go through the parallel form when the next one is drawn. Throws Error for an id outside the vocabulary.
  void append(const std::vector<int64_t>& ids);
  // Reads what has been added, all but its last token, piece by piece; `progress` is told how many tokens have been read.
  void read(const std::function<void(int64_t tokens)>& progress = {});
  // Draws the next token and adds it to the sequence. Throws Error where that is empty, and where it can have no next token: the logits are
  // not finite, or there is no room.
  int64_t next(const SamplingOptions& options);

  const std::vector<int64_t>& ids() const;
  int64_t state_bytes() const { return engine_.state_bytes() - engine_.begins_bytes(); }  // bytes of the state that save() writes

  // A state file (generate/sequence.h). save() throws Error, and writes nothing, where the state or the logits after it are not finite.
  // load() throws Error for a file of another model or a damaged one, and then leaves the session as it was.
  void save(const std::string& path, const std::string& model_hash);
  void load(const std::string& path, const std::string& model_hash);

 private:
  LanguageModel& model_;
  Engine engine_;
  int64_t sequence_ = -1;  // −1: there is none
};

}  // namespace based
