// The logits of a reference implementation, which a converted model must reproduce.
#pragma once
#include <optional>
#include <string>

#include "based/core/safetensors.h"
#include "based/models/language_model.h"

namespace based {

struct LogitsDifference {
  double largest = 0;  // the largest absolute difference divided by the largest absolute logit
  // As the file's metadata state it, "1e-9" for any type or "1e-9 in float64, 1e-4 in float32"; otherwise 1e-11 in fp64 and 5e-5 in fp32.
  double tolerance = 0;
  bool pass = false;
};

// The type in which a file's logits were computed: that of its "logits", fp64 or fp32.
torch::Dtype expected_dtype(const SafetensorsFile& file);

// Runs the model on "ids" [rows, tokens] and compares with "logits" [rows, tokens, padded_vocab], or [rows, tokens, vocab_size]. Throws
// Error if the file lacks them, has other shapes or ids that the model lacks, for a tolerance that is no number and for a type without a
// tolerance.
LogitsDifference compare_logits(LanguageModel& model, const SafetensorsFile& file);

}  // namespace based
