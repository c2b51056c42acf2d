#include "based/serve/protocol/request_fields.h"

#include <cmath>
#include <utility>

#include "based/core/text.h"

namespace based {
namespace {

std::string shown_value(const Json& value) { return printable(dump_json(value), 60); }

std::string range_text(const std::string& least, const std::string& most) { return " from " + least + " to " + most; }

}  // namespace

std::optional<int64_t> whole_number(const Json& value) {
  if (value.is_number_unsigned()) {
    const auto number = value.get<uint64_t>();
    if (number > static_cast<uint64_t>(INT64_MAX)) return std::nullopt;
    return static_cast<int64_t>(number);
  }
  if (value.is_number_integer()) return value.get<int64_t>();
  if (!value.is_number_float()) return std::nullopt;
  const auto number = value.get<double>();
  constexpr double kExact = 9007199254740992;  // 2⁵³: doubles up to here represent every integer
  if (!(std::abs(number) <= kExact) || std::floor(number) != number) return std::nullopt;
  return static_cast<int64_t>(number);
}

std::vector<int64_t> parse_token_ids(const Json& list, const std::string& param, int64_t most, int64_t vocab_size) {
  if (!list.is_array()) throw ApiError::invalid(param, param + ": must be a list of token ids, got " + shown_value(list));
  if (static_cast<int64_t>(list.size()) > most)
    throw ApiError::invalid(
        param, param + ": has " + std::to_string(list.size()) + " token ids, at most " + std::to_string(most) + " are allowed");
  std::vector<int64_t> ids;
  ids.reserve(list.size());
  for (const Json& item : list) {
    const std::optional<int64_t> id = item.is_number_float() ? std::nullopt : whole_number(item);
    if (!id || *id < 0 || *id >= vocab_size)
      throw ApiError::invalid(param, param + ": the element at index " + std::to_string(ids.size()) + " must be a token id" +
                                         range_text("0", std::to_string(vocab_size - 1)) + ", got " + shown_value(item));
    ids.push_back(*id);
  }
  return ids;
}

RequestFields::RequestFields(const Json& request, std::string path) : request_(request), path_(std::move(path)) {
  if (request.is_object()) return;
  if (path_.empty()) throw ApiError::invalid("", "the request must be a JSON object, got " + shown_value(request));
  const std::string name = path_.substr(0, path_.size() - 1);
  throw ApiError::invalid(name, name + ": must be an object, got " + shown_value(request));
}

const Json* RequestFields::find(const char* name) const {
  const auto found = request_.find(name);
  return found == request_.end() || found->is_null() ? nullptr : &*found;
}

void RequestFields::fail(const char* name, const std::string& message) const {
  throw ApiError::invalid(path_ + name, path_ + name + ": " + message);
}

bool RequestFields::boolean(const char* name, bool absent) const {
  const Json* const value = find(name);
  if (value == nullptr) return absent;
  if (!value->is_boolean()) fail(name, "must be true or false, got " + shown_value(*value));
  return value->get<bool>();
}

int64_t RequestFields::integer(const char* name, int64_t absent, int64_t least, int64_t most) const {
  const Json* const value = find(name);
  if (value == nullptr) return absent;
  const std::optional<int64_t> number = whole_number(*value);
  if (!number || *number < least || *number > most)
    fail(name, "must be an integer" + range_text(std::to_string(least), std::to_string(most)) + ", got " + shown_value(*value));
  return *number;
}

double RequestFields::number(const char* name, double absent, double least, double most) const {
  const Json* const value = find(name);
  if (value == nullptr) return absent;
  const double number = value->is_number() ? value->get<double>() : std::nan("");
  if (!(number >= least && number <= most))
    fail(name, "must be a number" + range_text(dump_json(least), dump_json(most)) + ", got " + shown_value(*value));
  return number;
}

std::string RequestFields::text(const char* name, const std::string& absent) const {
  const Json* const value = find(name);
  if (value == nullptr) return absent;
  if (!value->is_string()) fail(name, "must be a string, got " + shown_value(*value));
  return value->get<std::string>();
}

std::vector<std::string> RequestFields::texts(const char* name, int64_t most) const {
  const Json* const value = find(name);
  if (value == nullptr) return {};
  if (value->is_string()) return {value->get<std::string>()};
  if (!value->is_array()) fail(name, "must be a string or a list of strings, got " + shown_value(*value));
  if (static_cast<int64_t>(value->size()) > most)
    fail(name, "has " + std::to_string(value->size()) + " elements, at most " + std::to_string(most) + " are allowed");
  std::vector<std::string> texts;
  texts.reserve(value->size());
  for (const Json& item : *value) {
    if (!item.is_string())
      fail(name, "the element at index " + std::to_string(texts.size()) + " must be a string, got " + shown_value(item));
    texts.push_back(item.get<std::string>());
  }
  return texts;
}

std::vector<int64_t> RequestFields::token_ids(const char* name, int64_t most, int64_t vocab_size) const {
  const Json* const value = find(name);
  return value == nullptr ? std::vector<int64_t>{} : parse_token_ids(*value, path_ + name, most, vocab_size);
}

}  // namespace based
