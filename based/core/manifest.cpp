#include "based/core/manifest.h"

#include <algorithm>
#include <filesystem>

#include "based/core/files.h"
#include "based/core/folders.h"
#include "based/core/hash.h"
#include "based/core/json.h"
#include "based/core/text.h"

namespace based {
namespace {

constexpr const char* kFormat = "based-manifest";
constexpr int64_t kManifestVersion = 1;
constexpr uint64_t kMaxBytes = 16 << 20;  // size limit of manifest.json

[[noreturn]] void fail(const std::string& source, const std::string& what) { throw Error(source + ": " + what); }

const Json& member(const Json& table, const char* key, Json::value_t type, const std::string& source) {
  const auto found = table.find(key);
  if (found == table.end()) fail(source, std::string("has no '") + key + "'");
  const bool same = found->type() == type || (type == Json::value_t::number_integer && found->is_number_integer());
  if (!same) fail(source, std::string("'") + key + "' has the wrong type: " + printable(dump_json(*found)));
  return *found;
}

int64_t whole_number(const Json& table, const char* key, const std::string& source) {
  const Json& value = member(table, key, Json::value_t::number_integer, source);
  if (value.is_number_unsigned() && value.get<uint64_t>() > static_cast<uint64_t>(INT64_MAX)) {
    fail(source, std::string("'") + key + "' does not fit into 63 bits");
  }
  return value.get<int64_t>();
}

bool is_hash(const std::string& text) { return text.size() == 32 && text.find_first_not_of("0123456789abcdef") == std::string::npos; }

void check_file(const ManifestFile& file, const std::string& source) {
  const std::string& name = file.name;
  if (name.empty() || name == "." || name == ".." || name == kManifestName || name.find('/') != std::string::npos ||
      has_control_characters(name)) {
    fail(source, in_quotes(name) + " is no name of a file in the folder");
  }
  if (file.size < 0) fail(source, in_quotes(name) + ": the size is negative");
  if (!is_hash(file.hash)) fail(source, in_quotes(name) + ": 'xxh3_128' must be 32 hexadecimal digits");
}

}  // namespace

std::string manifest_text(const Manifest& manifest) {
  Json files = Json::array();
  for (const ManifestFile& file : manifest.files) files.push_back({{"name", file.name}, {"size", file.size}, {"xxh3_128", file.hash}});
  const std::string list = dump_json(files);
  const std::string hash = xxh3_128(std::as_bytes(std::span(list))).hex();
  return dump_json({{"format", kFormat}, {"version", kManifestVersion}, {"files", files}, {"xxh3_128", hash}}, 1) + "\n";
}

Manifest parse_manifest(std::string_view text, const std::string& source) {
  const Json json = parse_json(text, source);
  if (!json.is_object() || json.value("format", Json()) != kFormat) fail(source, "is no manifest");
  const int64_t version = whole_number(json, "version", source);
  if (version != kManifestVersion) {
    fail(source, "has version " + std::to_string(version) + "; this program reads version " + std::to_string(kManifestVersion));
  }
  Manifest manifest;
  for (const Json& entry : member(json, "files", Json::value_t::array, source)) {
    if (!entry.is_object()) fail(source, "every entry of 'files' must be a table");
    ManifestFile file{member(entry, "name", Json::value_t::string, source).get<std::string>(), whole_number(entry, "size", source),
                      member(entry, "xxh3_128", Json::value_t::string, source).get<std::string>()};
    check_file(file, source);
    if (!manifest.files.empty() && !(manifest.files.back().name < file.name)) {
      fail(source, "the files must be in the order of their names, each once: " + in_quotes(file.name));
    }
    manifest.files.push_back(std::move(file));
  }
  if (manifest_text(manifest) != text) fail(source, "is damaged: its own hash does not fit");
  return manifest;
}

void write_manifest(const std::string& folder) {
  Manifest manifest;
  for (const std::string& name : names_in(folder)) {
    if (name == kManifestName) continue;
    const std::string path = (std::filesystem::path(folder) / name).string();
    if (is_folder(path)) fail(path, "is no plain file; a manifest lists only these");
    const MappedFile file(path);
    manifest.files.push_back({name, static_cast<int64_t>(file.bytes().size()), xxh3_128(file.bytes()).hex()});
  }
  write_file_atomic((std::filesystem::path(folder) / kManifestName).string(), manifest_text(manifest));
}

void verify_manifest(const std::string& folder) {
  const std::filesystem::path base(folder);
  const std::string path = (base / kManifestName).string();
  for (const ManifestFile& wanted : parse_manifest(read_regular_file(path, kMaxBytes), path).files) {
    const std::string name = (base / wanted.name).string();
    const MappedFile file(name);
    if (static_cast<int64_t>(file.bytes().size()) != wanted.size) {
      fail(name, "has " + std::to_string(file.bytes().size()) + " bytes, the manifest says " + std::to_string(wanted.size));
    }
    if (xxh3_128(file.bytes()).hex() != wanted.hash) fail(name, "is damaged: its hash is not the manifest's");
  }
}

}  // namespace based
