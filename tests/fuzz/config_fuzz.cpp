// TOML and JSON configs: any text is a tree or an Error, and a tree written as JSON reads back as itself.
#include "based/core/config.h"
#include "tests/fuzz/fuzz.h"

namespace based {
namespace {

void check(const Config& config) {
  const std::string written = config.to_json();
  require(Config::parse_json(written, "again.json").to_json() == written, "JSON changes when it is written and read again");
}

}  // namespace

void fuzz_one(std::span<const std::byte> input) {
  const std::string_view text = as_text(input);
  accept_or_refuse([&] { check(Config::parse_toml(text, "fuzz.toml")); });
  accept_or_refuse([&] { check(Config::parse_json(text, "fuzz.json")); });
}

}  // namespace based
