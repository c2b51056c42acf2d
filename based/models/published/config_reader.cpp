#include "based/models/published/config_reader.h"

#include "based/core/text.h"

namespace based::published {

ConfigReader::ConfigReader(const Json& json, std::string path) : ConfigReader(json, std::move(path), "") {}

ConfigReader::ConfigReader(const Json& json, std::string path, std::string prefix)
    : json_(&json), path_(std::move(path)), prefix_(std::move(prefix)) {
  if (!json.is_object())
    throw Error(path_ + ": " +
                (prefix_.empty() ? "must be an object" : in_quotes(prefix_.substr(0, prefix_.size() - 1)) + " must be an object"));
}

bool ConfigReader::has(const std::string& key) const {
  const auto found = json_->find(key);
  return found != json_->end() && !found->is_null();
}

const Json* ConfigReader::find(const std::string& key) {
  read_.insert(key);
  return has(key) ? &*json_->find(key) : nullptr;
}

int64_t ConfigReader::integer(const std::string& key, int64_t fallback) {
  const Json* found = find(key);
  if (found == nullptr) return fallback;
  if (!found->is_number_integer()) refuse(key, "it must be an integer");
  return found->get<int64_t>();
}

double ConfigReader::number(const std::string& key, double fallback) {
  const Json* found = find(key);
  if (found == nullptr) return fallback;
  if (!found->is_number()) refuse(key, "it must be a number");
  return found->get<double>();
}

bool ConfigReader::boolean(const std::string& key, bool fallback) {
  const Json* found = find(key);
  if (found == nullptr) return fallback;
  if (!found->is_boolean()) refuse(key, "it must be true or false");
  return found->get<bool>();
}

std::string ConfigReader::text(const std::string& key, const std::string& fallback) {
  const Json* found = find(key);
  if (found == nullptr) return fallback;
  if (!found->is_string()) refuse(key, "it must be a string");
  return found->get<std::string>();
}

bool ConfigReader::is_text(const std::string& key, const std::string& expected) {
  const Json* found = find(key);
  return found != nullptr && *found == Json(expected);
}

std::vector<int64_t> ConfigReader::integers(const std::string& key) {
  const Json* found = find(key);
  std::vector<int64_t> numbers;
  if (found == nullptr) return numbers;
  if (!found->is_array()) refuse(key, "it must be a list of integers");
  numbers.reserve(found->size());
  for (const Json& item : *found) {
    if (!item.is_number_integer()) refuse(key, "it must be a list of integers");
    numbers.push_back(item.get<int64_t>());
  }
  return numbers;
}

ConfigReader* ConfigReader::table(const std::string& key) {
  const Json* found = find(key);
  if (found == nullptr) return nullptr;
  std::unique_ptr<ConfigReader>& made = tables_[key];
  if (!made) made.reset(new ConfigReader(*found, path_, prefix_ + key + "."));
  return made.get();
}

int64_t ConfigReader::size(const std::string& key) {
  if (!has(key)) throw Error(path_ + ": needs '" + prefix_ + key + "'");
  return size(key, 1);
}

int64_t ConfigReader::size(const std::string& key, int64_t fallback) {
  const int64_t value = integer(key, fallback);
  if (value < 1 || value > INT32_MAX) refuse(key, "it must be 1 to 2147483647");
  return value;
}

int64_t ConfigReader::layers(const std::string& key) {
  constexpr int64_t most = 1024;  // as check_model_config
  const int64_t value = size(key);
  if (value > most) refuse(key, "a model has at most " + std::to_string(most) + " layers");
  return value;
}

void ConfigReader::refuse(const std::string& key, const std::string& reason) const {
  const auto found = json_->find(key);
  throw Error(path_ + ": '" + prefix_ + key + "' is " + (found == json_->end() ? "absent" : printable(dump_json(*found), 200)) + ": " +
              reason);
}

void ConfigReader::require(const std::string& key, const Json& expected, const std::string& reason) {
  const Json* found = find(key);
  if (found != nullptr && *found != expected) refuse(key, reason);
}

void ConfigReader::ignore(std::initializer_list<const char*> keys) { read_.insert(keys.begin(), keys.end()); }

std::vector<std::string> ConfigReader::unread() const {
  std::vector<std::string> keys;
  for (const auto& [key, unused] : json_->items()) {
    if (!read_.contains(key)) keys.push_back(prefix_ + key);
    if (const auto table = tables_.find(key); table != tables_.end())
      for (const std::string& inner : table->second->unread()) keys.push_back(inner);
  }
  return keys;
}

}  // namespace based::published
