// The functions of std::filesystem for folders and their entries. They throw Error as "<path>: reason". No other file calls the throwing
// overloads of std::filesystem.
#pragma once
#include <string>
#include <vector>

#include "based/core/error.h"

namespace based {

std::string folder_of(const std::string& path);  // the parent folder; "." if the path has none

bool is_folder(const std::string& path);  // follows links; false if `path` does not exist
// The first of the paths that names the same file or folder as one before it; "" if there is none.
std::string named_twice(const std::vector<std::string>& paths);
bool make_folder(const std::string& path);                     // creates parents too; false if the folder already exists
std::vector<std::string> names_in(const std::string& folder);  // sorted

void remove_file(const std::string& path);                         // a file, a link or an empty folder; does nothing if it is absent
void remove_tree(const std::string& path);                         // with all of its entries; does nothing if it is absent
void rename_path(const std::string& from, const std::string& to);  // replaces an existing file

}  // namespace based
