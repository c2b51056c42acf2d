// HellaSwag: the continuation of a description of everyday life, out of four.
#pragma once
#include <string>
#include <string_view>

namespace based {

// lm-eval's preprocessing of contexts and endings: " [title]" becomes ". ", other text in brackets is removed, and two spaces become one.
std::string hellaswag_preprocessed(std::string_view text);
// lm-eval's context of the published fields.
std::string hellaswag_context(std::string_view activity_label, std::string_view ctx_a, std::string_view ctx_b);

}  // namespace based
