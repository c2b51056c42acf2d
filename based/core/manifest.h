// manifest.json: the size and hash of every file in a folder, so that a folder that is torn, cut or damaged is known as such.
//
//   {"format": "based-manifest", "version": 1, "files": [{"name": "a", "size": 3, "xxh3_128": "<32 hex digits>"}, …],
//    "xxh3_128": "<of the list of files>"}
#pragma once
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "based/core/error.h"

namespace based {

inline constexpr const char* kManifestName = "manifest.json";

struct ManifestFile {
  std::string name;  // in the folder itself: no '/'
  int64_t size = 0;
  std::string hash;  // Hash128::hex()
};

struct Manifest {
  std::vector<ManifestFile> files;  // sorted by name, each once
};

// Throws Error as "<source>: what is wrong". A text is accepted only as manifest_text writes it: any changed byte is found.
Manifest parse_manifest(std::string_view text, const std::string& source);
std::string manifest_text(const Manifest& manifest);

// Writes the manifest of all files that the folder holds now; durable, as the files must already be. Throws Error.
void write_manifest(const std::string& folder);

// Reads every file of the folder's manifest. Throws Error naming the first that is missing, cut or damaged; more files than it lists are
// no error.
void verify_manifest(const std::string& folder);

}  // namespace based
