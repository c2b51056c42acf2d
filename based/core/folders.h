// Folders and what is in them: the functions of std::filesystem, which throw Error as "<path>: what is wrong". No other file calls those
// that throw errors of their own.
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
void remove_tree(const std::string& path);                         // likewise, with all that is in it
void rename_path(const std::string& from, const std::string& to);  // replaces a file

}  // namespace based
