// Typed access to the fields of a request. Each method throws ApiError 400 with the field's name as `param` if the value has the wrong type
// or is out of range. A field that is absent or null has its default: client libraries send null for options that are not set.
#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "based/core/json.h"
#include "based/serve/protocol/api_error.h"

namespace based {

class RequestFields {
 public:
  // `request` must outlive the object. `path` is the prefix of the names in messages, such as "stream_options.". Throws ApiError 400 if
  // `request` is not an object.
  explicit RequestFields(const Json& request, std::string path = "");

  const Json* find(const char* name) const;  // null if the field is absent or null
  bool has(const char* name) const { return find(name) != nullptr; }

  bool boolean(const char* name, bool absent) const;
  // Also accepts a whole number that is written with a decimal point, such as 16.0.
  int64_t integer(const char* name, int64_t absent, int64_t least, int64_t most) const;
  double number(const char* name, double absent, double least, double most) const;
  std::string text(const char* name, const std::string& absent = "") const;
  // A string, or a list of at most `most` strings; empty if the field is absent.
  std::vector<std::string> texts(const char* name, int64_t most) const;
  // A list of at most `most` token ids from 0 to vocab_size − 1; empty if the field is absent.
  std::vector<int64_t> token_ids(const char* name, int64_t most, int64_t vocab_size) const;

  [[noreturn]] void fail(const char* name, const std::string& message) const;  // "<name>: <message>"

 private:
  const Json& request_;
  std::string path_;
};

// The integer that a JSON number represents, if it does so exactly.
std::optional<int64_t> whole_number(const Json& value);
// A list of token ids. `param` is the field's name in errors. Throws ApiError 400 for elements that are no ids of the vocabulary and for
// more than `most`.
std::vector<int64_t> parse_token_ids(const Json& list, const std::string& param, int64_t most, int64_t vocab_size);

}  // namespace based
