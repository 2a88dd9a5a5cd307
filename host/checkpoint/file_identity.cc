// SPDX-License-Identifier: MIT
// The error that tells what became of a file.
#include "host/checkpoint/file_identity.h"

#include <cinttypes>
#include <cstdio>

namespace tenon {
namespace {

std::string text_of(const FileIdentity& id) {
    char written[48];
    std::snprintf(written, sizeof written, "%" PRId64 ".%09" PRId64, id.written_s, id.written_ns);
    return format("inode {} of device {}, {} bytes, written at {}", id.inode, id.device, id.size,
                  written);
}

}  // namespace

Status check_identity(const std::string& path, const FileIdentity& found,
                      const FileIdentity& expected) {
    if (found == expected) {
        return {};
    }
    const char* what = !found.same_file(expected)    ? "replaced by another file"
                       : found.size < expected.size  ? "cut"
                       : found.size != expected.size ? "extended"
                                                     : "written to";
    return error(Code::io,
                 "{}: was {} after its header was checked: found {}; expected {}; let whatever "
                 "writes there end, then start again",
                 path, what, text_of(found), text_of(expected));
}

}  // namespace tenon
