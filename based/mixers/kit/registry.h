// Lookup by name in the tables of mixers and feature maps.
#pragma once
#include <string>
#include <vector>

#include "based/core/config.h"
#include "based/core/error.h"

namespace based {

// Returns the entry of this name. Throws UsageError "unknown <kind> 'nmae', did you mean 'name'?"; if no name is similar, the message names
// the command that lists them.
template <class Table>
const auto& find_named(const Table& table, const std::string& kind, const std::string& name) {
  std::vector<std::string> names;
  for (const auto& entry : table) {
    if (name == entry.name) return entry;
    names.emplace_back(entry.name);
  }
  const std::string guess = nearest(name, names);
  throw UsageError("unknown " + kind + " '" + name + "'" +
                   (guess.empty() ? "; `based mixers` lists the known ones" : ", did you mean '" + guess + "'?"));
}

}  // namespace based
