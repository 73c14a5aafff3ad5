# SPDX-FileCopyrightText: 2026 the libnsa authors
# SPDX-License-Identifier: MIT
#
# find_package(libnsa) for a project that carries the source of libnsa:
#
#   list(APPEND CMAKE_MODULE_PATH ${CMAKE_SOURCE_DIR}/third_party/libnsa/packaging/cmake)
#   find_package(libnsa 0.2 REQUIRED)
#
# An installed libnsa that fits is taken. Otherwise the source is built, with meson and ninja, when
# a target that links it is built. Either way there are nsa::nsa and, if libyaml is found, nsa::static.
#
#   libnsa_SOURCE_DIR     the source tree; this file's own, unless it is set
#   libnsa_BUILD_SOURCE   ON: build the source even if a libnsa is installed
#   libnsa_MESON_OPTIONS  further options of `meson setup`, as -Dbuildtype=debug
set(libnsa_SOURCE_DIR "${CMAKE_CURRENT_LIST_DIR}/../.." CACHE PATH "The source of libnsa")
option(libnsa_BUILD_SOURCE "Build libnsa even if one is installed" OFF)

if(TARGET nsa::nsa)
  set(libnsa_FOUND TRUE)
  return()
endif()
if(NOT libnsa_BUILD_SOURCE)
  find_package(libnsa ${libnsa_FIND_VERSION} CONFIG QUIET)
  if(libnsa_FOUND)
    return()
  endif()
endif()

# ---- the version of the source, by the rule of libnsaConfigVersion.cmake
get_filename_component(_nsa_source "${libnsa_SOURCE_DIR}" ABSOLUTE)
set(libnsa_VERSION "")
if(EXISTS "${_nsa_source}/include/nsa/base.h")
  foreach(_nsa_part MAJOR MINOR PATCH)
    file(STRINGS "${_nsa_source}/include/nsa/base.h" _nsa_line REGEX "define NSA_VERSION_${_nsa_part} [0-9]+")
    string(REGEX MATCH "[0-9]+$" _nsa_number "${_nsa_line}")
    list(APPEND libnsa_VERSION "${_nsa_number}")
  endforeach()
  list(GET libnsa_VERSION 0 1 _nsa_series)
  string(REPLACE ";" "." _nsa_series "${_nsa_series}")
  string(REPLACE ";" "." libnsa_VERSION "${libnsa_VERSION}")
endif()
find_program(libnsa_MESON meson)
find_program(libnsa_NINJA NAMES ninja ninja-build)
mark_as_advanced(libnsa_MESON libnsa_NINJA)
set(_nsa_problem "")
if(libnsa_FIND_VERSION AND libnsa_VERSION AND NOT (libnsa_VERSION VERSION_GREATER_EQUAL libnsa_FIND_VERSION AND
    _nsa_series STREQUAL "${libnsa_FIND_VERSION_MAJOR}.${libnsa_FIND_VERSION_MINOR}"))
  set(_nsa_problem "${_nsa_source} is libnsa ${libnsa_VERSION}, and ${libnsa_FIND_VERSION} is asked for")
  set(libnsa_VERSION "")
endif()
include(FindPackageHandleStandardArgs)
find_package_handle_standard_args(libnsa REQUIRED_VARS libnsa_VERSION libnsa_MESON libnsa_NINJA
  REASON_FAILURE_MESSAGE "${_nsa_problem}")
if(NOT libnsa_FOUND)
  return()
endif()

# ---- the build
include(ExternalProject)
set(_nsa_prefix "${CMAKE_BINARY_DIR}/libnsa")
set(_nsa_shared "${_nsa_prefix}/lib/libnsa.so")
set(_nsa_archive "${_nsa_prefix}/lib/libnsa.a")
ExternalProject_Add(libnsa_build
  SOURCE_DIR "${_nsa_source}"
  BINARY_DIR "${CMAKE_BINARY_DIR}/libnsa-build"
  CONFIGURE_COMMAND ${CMAKE_COMMAND} -E env "CC=${CMAKE_C_COMPILER}" ${libnsa_MESON} setup
    --prefix "${_nsa_prefix}" --libdir lib -Dbuildtype=release -Dtests=false ${libnsa_MESON_OPTIONS}
    <BINARY_DIR> <SOURCE_DIR>
  BUILD_COMMAND ${libnsa_NINJA} -C <BINARY_DIR>
  INSTALL_COMMAND ${libnsa_MESON} install -C <BINARY_DIR> --no-rebuild --quiet --tags runtime,devel
  BUILD_ALWAYS TRUE # ninja knows what has changed
  BUILD_BYPRODUCTS "${_nsa_shared}" "${_nsa_archive}")
file(MAKE_DIRECTORY "${_nsa_prefix}/include") # a folder of includes has to exist when CMake configures

add_library(nsa::nsa SHARED IMPORTED GLOBAL)
set_target_properties(nsa::nsa PROPERTIES
  IMPORTED_LOCATION "${_nsa_shared}"
  IMPORTED_SONAME "libnsa.so.${_nsa_series}"
  INTERFACE_INCLUDE_DIRECTORIES "${_nsa_prefix}/include")
add_dependencies(nsa::nsa libnsa_build)

find_package(Threads QUIET)
find_library(NSA_YAML_LIBRARY NAMES yaml)
mark_as_advanced(NSA_YAML_LIBRARY)
if(NSA_YAML_LIBRARY AND Threads_FOUND)
  add_library(nsa::static STATIC IMPORTED GLOBAL)
  set_target_properties(nsa::static PROPERTIES
    IMPORTED_LOCATION "${_nsa_archive}"
    IMPORTED_LINK_INTERFACE_LANGUAGES C
    INTERFACE_LINK_LIBRARIES "${NSA_YAML_LIBRARY};Threads::Threads;${CMAKE_DL_LIBS};m"
    INTERFACE_INCLUDE_DIRECTORIES "${_nsa_prefix}/include")
  add_dependencies(nsa::static libnsa_build)
endif()
