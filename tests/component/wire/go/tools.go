//go:build tools

// Package tools names what is built from this module.
package tools

import _ "github.com/summerwind/h2spec/cmd/h2spec"
