// Answers of a language model to the requests of an evaluation.
#pragma once
#include <string>

#include "based/eval/eval_run.h"
#include "based/generate/scorer.h"
#include "based/generate/text_model.h"

namespace based {

class ScorerModel final : public EvalModel {
 public:
  // `model` must outlive this. max_length 0: the model's positions, or 2,048 if it has no limit. left_pad above 0: contexts of generations
  // are padded with the end-of-text token in batches of so many requests (left_pad.h). Throws UsageError for a length that the model's
  // positions do not allow, and for padding without an end-of-text token.
  ScorerModel(const TextModel& model, ScorerOptions options, int64_t max_length, int64_t left_pad = 0);

  const Tokenizer& tokenizer() const override { return *model_.tokenizer; }
  int64_t max_length() const override { return max_length_; }
  std::vector<std::vector<EvalAnswer>> answer(std::span<const EvalDocument> documents, const Progress& progress) override;
  Json description() const override;
  uint64_t block_bytes() const override;
  const Scorer& scorer() const { return scorer_; }

 private:
  const TextModel& model_;
  ScorerOptions options_;
  int64_t max_length_, left_pad_;
  Scorer scorer_;
};

}  // namespace based
