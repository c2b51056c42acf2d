// Manifests of checkpoints. Their hash would reject nearly every mutation, so the target corrects it and thereby reaches the parser.
#include "based/core/hash.h"
#include "based/core/json.h"
#include "based/core/manifest.h"
#include "tests/fuzz/fuzz.h"

namespace based {

void fuzz_one(std::span<const std::byte> input) {
  const std::string text(as_text(input));
  accept_or_refuse([&] { require(manifest_text(parse_manifest(text, "fuzz")) == text, "an accepted manifest is written as it was read"); });
  accept_or_refuse([&] {
    Json json = parse_json(text, "fuzz");
    if (!json.is_object() || !json.contains("files")) return;
    const std::string list = dump_json(json["files"]);
    json["xxh3_128"] = xxh3_128(std::as_bytes(std::span(list))).hex();
    const std::string mended = dump_json(json, 1) + "\n";
    require(manifest_text(parse_manifest(mended, "fuzz")) == mended, "a mended manifest is written as it was read");
  });
}

}  // namespace based
