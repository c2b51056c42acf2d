// manifest.json: the size and hash of every file in a folder, by which an incomplete or damaged folder is detected.
//
//   {"format": "based-manifest", "version": 1, "files": [{"name": "a", "size": 3, "xxh3_128": "<32 hex digits>"}, …],
//    "xxh3_128": "<hash of the list of files>"}
#pragma once
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "based/core/error.h"

namespace based {

inline constexpr const char* kManifestName = "manifest.json";

struct ManifestFile {
  std::string name;  // a file directly in the folder, without '/'
  int64_t size = 0;
  std::string hash;  // Hash128::hex()
};

struct Manifest {
  std::vector<ManifestFile> files;  // sorted by name, without duplicates
};

// Throws Error as "<source>: <reason>". Accepts only the exact text that manifest_text writes, so that every changed byte is detected.
Manifest parse_manifest(std::string_view text, const std::string& source);
std::string manifest_text(const Manifest& manifest);

// Writes the manifest of all files that are in the folder. The manifest is durable afterwards; the files must be durable already. Throws
// Error.
void write_manifest(const std::string& folder);

// Reads every file that the folder's manifest lists. Throws Error that names the first missing, truncated or damaged file. Additional files
// are no error.
void verify_manifest(const std::string& folder);

}  // namespace based
