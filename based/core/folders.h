// The functions of std::filesystem for folders and their entries. They throw Error as "<path>: reason". No other file calls the throwing
// overloads of std::filesystem.
#pragma once
#include <string>
#include <vector>

#include "based/core/error.h"

namespace based {

std::string folder_of(const std::string& path);  // "." where the path names none

bool is_folder(const std::string& path);                       // links are followed; false where there is nothing
bool make_folder(const std::string& path);                     // with those above it; false where it is there
std::vector<std::string> names_in(const std::string& folder);  // sorted

void remove_file(const std::string& path);                         // or a link, or an empty folder; none where it is absent
void remove_tree(const std::string& path);                         // with all of its entries; nothing happens if it is absent
void rename_path(const std::string& from, const std::string& to);  // replaces a file

}  // namespace based
