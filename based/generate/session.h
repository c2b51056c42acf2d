// One text being continued from a recurrent state. The state has seen every token but the last; so a prompt, a restored state and a text
// just generated are all continued in the same way, by a step with the last token, and give the same tokens, bit for bit.
#pragma once
#include <string>
#include <vector>

#include "based/generate/sampler.h"
#include "based/models/language_model.h"

namespace based {

class Session {
 public:
  explicit Session(LanguageModel& model);  // an empty text

  // Adds tokens; all but the last go through the parallel form, in pieces, so that memory does not grow with the text (growing states
  // excepted). Throws Error for an id outside the vocabulary.
  void append(const std::vector<int64_t>& ids);
  // Steps over the last token, draws the next one and adds it to the text. Throws Error where the text is empty.
  int64_t next(const SamplingOptions& options);

  const std::vector<int64_t>& ids() const { return ids_; }
  ModelState& state() { return state_; }

  // A state file: version, hash of the model's weights, token ids, state, checksum. load() throws Error for a file of another model or a
  // damaged one, and then leaves the session as it was.
  void save(const std::string& path, const std::string& model_hash) const;
  void load(const std::string& path, const std::string& model_hash);

 private:
  LanguageModel& model_;
  ModelState state_;
  std::vector<int64_t> ids_;
  Tensor slot_;
};

}  // namespace based
